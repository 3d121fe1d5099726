import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxsearchrl.chat.tool_json import read_turn, write_turn
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall


def read(text, truncated=False):
    return read_turn(text, truncated=truncated)


def call(body):
    return f"<tool_call>\n{body}\n</tool_call>"


SEARCH = '{"name": "search", "arguments": {"query": "a"}}'
SEARCH_CALL = ToolCall("search", {"query": "a"})


def test_calls_keep_their_order_and_the_text_around_them_is_kept():
    text = f"First.\n{call(SEARCH)}\nthen\n{call(SEARCH.replace('search', 'grep'))} done"
    turn = read(text)
    assert turn.calls == (SEARCH_CALL, ToolCall("grep", {"query": "a"}))
    assert turn.text == "First.\nthen\ndone"
    assert turn.reasoning == ""
    assert not turn.truncated
    assert turn.written == text


@pytest.mark.parametrize("space", ["", " ", "\n\n\t"])
def test_spaces_around_the_object_do_not_matter(space):
    assert read(f"<tool_call>{space}{SEARCH}{space}</tool_call>").calls == (SEARCH_CALL,)


def test_calls_inside_reasoning_are_not_calls():
    turn = read(f"<think>maybe {call('{}')}</think>\n\n{call(SEARCH)}")
    assert turn.calls == (SEARCH_CALL,)
    assert turn.reasoning == f"maybe {call('{}')}"
    assert turn.text == ""


def test_reasoning_that_stays_open_reaches_to_the_end():
    turn = read(f"a<think>hm {call(SEARCH)}", truncated=True)
    assert turn == AssistantTurn(text="a", reasoning=f"hm {call(SEARCH)}", truncated=True)


def test_tags_inside_a_json_string_belong_to_the_string():
    query = "</tool_call> <think> <tool_call>"
    turn = read(call(json.dumps({"name": "search", "arguments": {"query": query}})))
    assert turn.calls == (ToolCall("search", {"query": query}),)
    assert turn.text == turn.reasoning == ""


def test_arguments_as_a_string_that_holds_an_object():
    assert read(call(r'{"name": "search", "arguments": "{\"query\": \"a\"}"}')).calls == (SEARCH_CALL,)


MALFORMED = {
    "cut inside a string": ('{"query": "a', "invalid JSON, Invalid control character at character 13"),
    "a quote too many": (
        '{"name": "s", "arguments": {"q": "a"""}}',
        "invalid JSON, Expecting ',' delimiter at character 37",
    ),
    "single quotes": ("{'name': 'search'}", "invalid JSON"),
    "empty": ("", "invalid JSON, Expecting value at character 1"),
    "prose": ("search for a", "invalid JSON"),
    "a list": (f"[{SEARCH}]", "it is not a JSON object"),
    "no name": ('{"arguments": {}}', '"name" is missing'),
    "no arguments": ('{"name": "finish"}', '"arguments" is missing'),
    "a number as name": ('{"name": 1, "arguments": {}}', '"name" is not a string'),
    "null as arguments": ('{"name": "finish", "arguments": null}', '"arguments" is not an object'),
    "a list as arguments": ('{"name": "finish", "arguments": []}', '"arguments" is not an object'),
    "a string as arguments": ('{"name": "finish", "arguments": "a"}', '"arguments" is a string, not an object'),
    "a list in a string": ('{"name": "finish", "arguments": "[]"}', '"arguments" is not an object'),
    "an argument beside": ('{"name": "s", "query": "a", "arguments": {}}', '"query" does not belong'),
    "a key twice": ('{"name": "s", "name": "t", "arguments": {}}', 'the key "name" stands twice'),
    "an argument twice": ('{"name": "s", "arguments": {"q": 1, "q": 2}}', 'the key "q" stands twice'),
    "twice in a string": (r'{"name": "s", "arguments": "{\"q\": 1, \"q\": 2}"}', 'the key "q" stands twice'),
    "NaN": ('{"name": "s", "arguments": {"k": NaN}}', "NaN is not JSON"),
    "Infinity": ('{"name": "s", "arguments": {"k": -Infinity}}', "-Infinity is not JSON"),
    "NaN in a string": ('{"name": "s", "arguments": "{\\"k\\": NaN}"}', "NaN is not JSON"),
    "overflow": ('{"name": "s", "arguments": {"k": 1e999}}', "a number is out of range"),
    "overflow in a string": ('{"name": "s", "arguments": "{\\"k\\": 1e999}"}', "a number is out of range"),
    "a huge integer": ('{"name": "s", "arguments": {"k": ' + "9" * 5000 + "}}", "digits"),
    "half a surrogate pair": (r'{"name": "s", "arguments": {"q": "\ud83d"}}', "surrogate"),
    "half a pair as key": (r'{"\ud83d": 1, "\ud83d": 2}', r'the key "\ud83d" stands twice'),
    "more behind": (SEARCH + "}", "something between the JSON object and </tool_call>"),
    "two objects": (f"{SEARCH}\n{SEARCH}", "something between the JSON object and </tool_call>"),
    "33 levels": ('{"name": "s", "arguments": {"q": ' + "[" * 31 + "]" * 31 + "}}", "deeper than 32 levels"),
    "10,000 lists": ("[" * 10_000, "deeper than 32 levels"),
    "10,000 objects": ('{"a":' * 10_000 + "1" + "}" * 10_000, "deeper than 32 levels"),
    "10,000 lists in a string": (f'{{"name": "s", "arguments": "{"[" * 10_000}"}}', "deeper than 32 levels"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_call_names_the_fault_and_shows_the_right_form(name):
    body, fault = MALFORMED[name]
    turn = read(f"before {call(body)} after {call(SEARCH)}")
    malformed, good = turn.calls
    assert isinstance(malformed, MalformedCall)
    assert malformed.text == call(body)
    assert fault in malformed.error
    assert '<tool_call>{"name": ..., "arguments": {...}}</tool_call>' in malformed.error
    malformed.error.encode()  # the model has to be able to read it
    assert good == SEARCH_CALL
    assert turn.text == "before\nafter"


def test_32_levels_are_read():
    deep = '{"name": "s", "arguments": {"q": ' + "[" * 30 + "]" * 30 + "}}"
    assert isinstance(read(call(deep)).calls[0], ToolCall)


def test_escapes_that_make_a_pair_are_one_character():
    assert read(call(r'{"name": "s", "arguments": {"q": "\ud83d\udcc8"}}')).calls == (ToolCall("s", {"q": "📈"}),)


@pytest.mark.parametrize("body", [SEARCH, SEARCH[:-1], ""])
def test_a_call_that_stays_open_is_malformed_even_when_its_json_is_complete(body):
    (malformed,) = read(f"<tool_call>\n{body}").calls
    assert isinstance(malformed, MalformedCall)
    assert malformed.text == f"<tool_call>\n{body}"
    assert "</tool_call> is missing" in malformed.error
    (cut,) = read(f"<tool_call>\n{body}", truncated=True).calls
    assert isinstance(cut, MalformedCall)
    assert "the token limit cut it off" in cut.error


def test_a_complete_call_before_the_limit_is_read():
    turn = read(f"{call(SEARCH)}\n<tool_call>\n{SEARCH}\n</tool_", truncated=True)
    assert turn.calls[0] == SEARCH_CALL
    assert isinstance(turn.calls[1], MalformedCall)
    assert turn.truncated


def test_an_open_call_does_not_swallow_the_next():
    open_call, good = read(f"<tool_call>\n{SEARCH}\n{call(SEARCH)}").calls
    assert isinstance(open_call, MalformedCall)
    assert "before the next" in open_call.error
    assert good == SEARCH_CALL


def test_text_without_calls():
    assert read(f"  {SEARCH} </tool_call> ") == AssistantTurn(text=f"{SEARCH} </tool_call>")
    assert read("") == AssistantTurn()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=5,
)
calls = st.builds(ToolCall, st.text(), st.dictionaries(st.text(), json_values, max_size=3))
plain = st.text(st.characters(codec="utf-8", exclude_characters="<")).map(str.strip)


@given(st.builds(AssistantTurn, plain, plain, st.lists(calls, max_size=3).map(tuple)))
@example(AssistantTurn("a", "b", (ToolCall("</tool_call>", {"<think>": "<tool_call>"}),)))
def test_reading_what_was_written(turn):
    assert read(write_turn(turn)) == turn


def test_a_malformed_call_is_written_as_it_was():
    text = f"a\n{call('{')}\n{call(SEARCH)}"
    assert write_turn(read(text)) == text


fragments = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", SEARCH, "{", '"', "\\", "x", "\n"])


@given(st.lists(fragments | st.text(max_size=3)).map("".join), st.booleans())
def test_nothing_raises_and_every_opening_outside_reasoning_has_one_answer(text, truncated):
    turn = read(text, truncated)
    assert len(turn.calls) <= text.count("<tool_call>")
    assert turn.truncated == truncated
    if "<think>" not in text and SEARCH not in text:
        assert len(turn.calls) == text.count("<tool_call>")
