from jaxsearchrl.chat.tool_section import json_section, terse_section
from jaxsearchrl.messages import ToolSpec

SEARCH = ToolSpec(
    "search",
    "Ranked search — 価.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "k": {"type": "integer"},
            "fields": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["query", "fields"],
    },
)
FINISH = ToolSpec("finish", "End.", {"type": "object", "properties": {}})
SHORT = ToolSpec("search", "find", {"type": "object", "properties": {"query": {}}, "required": ["query"]})


def test_the_terse_section():
    assert terse_section([SEARCH, FINISH]) == (
        "# Tools\n\n<tools>\n"
        "search(query: string, k?: integer, fields: string[]): Ranked search — 価.\n"
        "finish(): End.\n"
        "</tools>\n\nTo call a tool, write:\n"
        '<tool_call>\n{"name": "search", "arguments": {"query": "...", "fields": ["..."]}}\n</tool_call>'
    )


def test_arguments_without_a_type_are_names_only():
    section = terse_section([SHORT])
    assert "\nsearch(query): find\n" in section
    assert '{"query": "..."}' in section


def test_a_tool_without_arguments_as_example():
    assert terse_section([FINISH]).endswith('{"name": "finish", "arguments": {}}\n</tool_call>')


def test_the_json_section_has_one_line_per_tool_and_keeps_letters():
    lines = json_section([SEARCH, FINISH]).split("\n")
    start = lines.index("<tools>")
    assert lines.index("</tools>") == start + 3
    assert lines[start + 1].startswith(
        '{"type": "function", "function": {"name": "search", "description": "Ranked search — 価.", "parameters": '
    )
