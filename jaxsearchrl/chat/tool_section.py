"""How tools stand in the system turn of a ChatML prompt: the models' own forms, or one short line per tool."""

import json
from collections.abc import Sequence
from typing import Any

from jaxsearchrl.chat.tool_json import write_call
from jaxsearchrl.messages import ToolCall, ToolSpec

_JSON_SECTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

_XML_SECTION = """# Tools

You have access to the following functions:

<tools>
{tools}
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and do not tell \
the user about function calls
</IMPORTANT>"""

_TERSE_SECTION = """# Tools

<tools>
{tools}
</tools>

To call a tool, write:
{example}"""

# What the example call shows for an argument, by its JSON schema type; for a string, or without a type, it is "...".
_EXAMPLES: dict[str, Any] = {"integer": 1, "number": 1.0, "boolean": True, "array": ["..."], "object": {}}


def json_section(tools: Sequence[ToolSpec]) -> str:
    """The section that Qwen2.5 and Qwen3 were trained on: each tool as one line of JSON schema."""
    return _JSON_SECTION.format(tools="\n".join(_schema(tool) for tool in tools))


def xml_section(tools: Sequence[ToolSpec]) -> str:
    """The section that Qwen3.5 was trained on: the same lines, and calls as tags."""
    return _XML_SECTION.format(tools="\n".join(_schema(tool) for tool in tools))


def terse_section(tools: Sequence[ToolSpec]) -> str:
    """A section for small contexts: `name(argument: type, optional?: type): description` per tool, and an example call.

    The example calls the first tool with its required arguments. Descriptions of single arguments are left out.
    """
    lines = "\n".join(f"{tool.name}({_arguments(tool)}): {tool.description}" for tool in tools)
    return _TERSE_SECTION.format(tools=lines, example=_example(tools[0]))


def _schema(tool: ToolSpec) -> str:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _arguments(tool: ToolSpec) -> str:
    required = tool.parameters.get("required", ())
    properties = tool.parameters.get("properties", {})
    return ", ".join(name + "?" * (name not in required) + _type(schema) for name, schema in properties.items())


def _type(schema: dict[str, Any]) -> str:
    """ ": type", or nothing where the schema names none."""
    if schema.get("type") == "array" and "type" in schema.get("items", {}):
        return f": {schema['items']['type']}[]"
    return f": {schema['type']}" if "type" in schema else ""


def _example(tool: ToolSpec) -> str:
    properties = tool.parameters.get("properties", {})
    kinds = {name: properties.get(name, {}).get("type") for name in tool.parameters.get("required", ())}
    return write_call(ToolCall(tool.name, {name: _EXAMPLES.get(kind, "...") for name, kind in kinds.items()}))
