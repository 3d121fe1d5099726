"""Calls as tags: what is read, what is refused, and what a value means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.chat.tool_xml import read_turn, write_call, write_turn
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall, ToolSpec

TOOL = ToolSpec(
    "search",
    "",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "k": {"type": "integer"},
            "exact": {"type": "boolean"},
            "ids": {"type": "array", "items": {"type": "string"}},
            "by": {"type": "object"},
            "any": {},
            "word": {"type": ["string", "null"]},
        },
    },
)


def read(text, truncated=False):
    return read_turn(text, [TOOL], truncated=truncated)


def call(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def parameter(key, value):
    return f"<parameter={key}>\n{value}\n</parameter>"


SEARCH = f"<function=search>\n{parameter('query', 'a')}\n</function>"
SEARCH_CALL = ToolCall("search", {"query": "a"})


def test_calls_keep_their_order_and_the_text_around_them_is_kept():
    turn = read(f"First.\n\n{call(SEARCH)}\nthen\n{call(SEARCH.replace('search', 'grep'))} done")
    assert turn.calls == (SEARCH_CALL, ToolCall("grep", {"query": "a"}))
    assert (turn.text, turn.reasoning, turn.text_after_call) == ("First.\nthen\ndone", "", True)


@pytest.mark.parametrize("space", ["", " ", "\n\n\t"])
def test_space_between_tags_does_not_matter(space):
    value = "<parameter=query>a</parameter>"
    spaced = f"<tool_call>{space}<function=search>{space}{value}{space}{value.replace('query', 'any')}{space}"
    assert read(f"{spaced}</function>{space}</tool_call>").calls == (ToolCall("search", {"query": "a", "any": "a"}),)


def test_calls_inside_reasoning_are_not_calls():
    turn = read(f"<think>maybe {call(SEARCH)}</think>\n\n{call('<function=finish>' + '</function>')}")
    assert turn.calls == (ToolCall("finish", {}),)


VALUES = [
    ("query", "2024", "2024"),
    ("query", " a\n\nb\n", " a\n\nb\n"),
    ("query", "", ""),
    ("query", "a < b </function> <parameter=x>", "a < b </function> <parameter=x>"),
    ("k", "3", 3),
    ("k", " 3 ", 3),
    ("k", "three", "three"),
    ("exact", "true", True),
    ("exact", "True", True),
    ("exact", "yes", "yes"),
    ("ids", '["a", "b"]', ["a", "b"]),
    ("ids", "a_12", "a_12"),
    ("by", '{"x": [1.5, null]}', {"x": [1.5, None]}),
    ("by", "None", None),
    ("any", "3", "3"),
    ("word", "null", "null"),
    ("unknown", "3", "3"),
]


@pytest.mark.parametrize(("key", "written", "meant"), VALUES)
def test_the_schema_says_what_a_value_means(key, written, meant):
    [found] = read(call(f"<function=search>\n{parameter(key, written)}\n</function>")).calls
    assert found == ToolCall("search", {key: meant})
    assert type(found.arguments[key]) is type(meant)


def test_without_a_schema_every_value_is_text():
    body = call(f"<function=other>\n{parameter('k', '3')}\n</function>")
    assert read(body).calls == (ToolCall("other", {"k": "3"}),)
    assert read_turn(body, [], truncated=False).calls == (ToolCall("other", {"k": "3"}),)


TWICE = '{"a": 1, "a": 2}'
MALFORMED = {
    "empty": ("", "<function=...> with a name is missing"),
    "JSON": ('{"name": "search", "arguments": {}}', "<function=...> with a name is missing"),
    "no name": ("<function=></function>", "<function=...> with a name is missing"),
    "dots": ("<function=...></function>", "<function=...> with a name is missing"),
    "an open parameter": ("<function=search><parameter=query>a</function>", "</parameter> is missing"),
    "a nameless parameter": ("<function=search><parameter=>a</parameter></function>", "the parameter has no name"),
    "an open function": (f"<function=search>{parameter('query', 'a')}", "</function> is missing"),
    "words between": (f"<function=search>hm {parameter('query', 'a')}</function>", "something beside the parameters"),
    "words behind": (f"{SEARCH} hm", "something beside the parameters"),
    "two functions": (f"{SEARCH}\n{SEARCH}", "something beside the parameters"),
    "twice": (f"<function=search>{parameter('k', 1) * 2}</function>", "the parameter 'k' stands twice"),
    "an open list": (f"<function=search>{parameter('ids', '[1')}</function>", "'ids' is no array: invalid JSON"),
    "a key twice": (f"<function=search>{parameter('by', TWICE)}</function>", "'by' is no object: the key"),
    "10,000 lists": (f"<function=search>{parameter('ids', '[' * 10_000)}</function>", "deeper than 32 levels"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_call_names_the_fault_and_shows_the_right_form(name):
    body, fault = MALFORMED[name]
    malformed, good = read(f"before {call(body)} after {call(SEARCH)}").calls
    assert isinstance(malformed, MalformedCall)
    assert malformed.text == call(body)
    assert fault in malformed.error
    assert malformed.error.endswith("<tool_call><function=...><parameter=...>...</parameter></function></tool_call>")
    assert good == SEARCH_CALL


def test_the_right_form_is_no_call():
    [malformed] = read(call("")).calls
    assert isinstance(read(malformed.error).calls[0], MalformedCall)


@pytest.mark.parametrize("body", [SEARCH, SEARCH[:-1], "<function=search>\n<parameter=query>\na", ""])
def test_a_call_that_stays_open_is_malformed(body):
    [malformed] = read(f"<tool_call>\n{body}").calls
    assert "</tool_call> is missing" in malformed.error
    [cut] = read(f"<tool_call>\n{body}", truncated=True).calls
    assert "the token limit cut it off" in cut.error
    opened, good = read(f"<tool_call>\n{body}\n{call(SEARCH)}").calls
    assert "</tool_call> is missing before the next <tool_call>" in opened.error
    assert good == SEARCH_CALL


# What a value cannot hold is the end of itself and of its call.
texts = st.text(st.characters(codec="utf-8"), max_size=20)
plain = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=20).map(str.strip)
calls = st.builds(
    ToolCall,
    st.just("search"),
    st.fixed_dictionaries(
        {},
        optional={
            "query": texts,
            "k": st.integers(-(10**9), 10**9),
            "exact": st.booleans(),
            "ids": st.lists(texts, max_size=3),
            "by": st.dictionaries(texts, texts | st.none(), max_size=2),
        },
    ),
)


@given(st.builds(AssistantTurn, plain, plain, st.lists(calls, max_size=3).map(tuple)))
def test_reading_what_was_written(turn):
    assert read(write_turn(turn)) == turn


def test_a_malformed_call_is_written_as_it_was():
    text = f"a\n\n{call('hm')}\n{write_call(SEARCH_CALL)}"
    assert write_turn(read(text)) == text


TAGS = "think tool_call function parameter /think /tool_call /function /parameter function=search parameter=ids"
fragments = st.sampled_from([*(f"<{tag}>" for tag in TAGS.split()), "<function=", "[", "{", '"', "x", "\n"])


@given(st.lists(fragments | texts).map("".join), st.booleans())
def test_nothing_raises_and_every_opening_outside_reasoning_has_one_answer(text, truncated):
    turn = read(text, truncated)
    assert len(turn.calls) <= text.count("<tool_call>")
    assert turn.truncated == truncated
    if "<think>" not in text:
        assert len(turn.calls) == text.count("<tool_call>")


def test_a_megabyte_of_openings_is_read_in_one_pass():
    for text in ("<tool_call><function=a><parameter=b>" * 20_000, "<function=a><parameter=b>" * 30_000):
        read(f"<tool_call>{text}", truncated=True)
        read(call(text))
