"""Tool calls as JSON between `<tool_call>` and `</tool_call>` (Qwen2.5, Qwen3, SmolLM2): writing turns, reading turns.

What a model writes is untrusted: reading never raises. Our rules, where the models' own documentation leaves room:

* A call is one object with exactly "name" (a string) and "arguments" (an object, or a string that holds one as JSON).
  A missing or further key, a key given twice, NaN, Infinity, numbers out of range, half a surrogate pair, and nesting
  deeper than 32 levels are refused. Names and arguments are not checked against the tools; the environment does that.
* A call must be closed by `</tool_call>`, even when its JSON is complete.
* Calls inside `<think>` … `</think>` are reasoning and are not read. A `<think>` that stays open reaches to the end.
* A `</tool_call>` inside a JSON string belongs to the string.
"""

import json
import re
from typing import Any

from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall
from jaxsearchrl.strict_json import DECODER, check_value, too_deep

_OPENING = re.compile(r"<think>|<tool_call>")
_CALL_TAG = re.compile(r"</?tool_call>")
_SPACE = re.compile(r"\s*")
_MAX_DEPTH = 32

# Not a call that could be copied as it stands: a small model would.
_RIGHT_FORM = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'


def write_call(call: ToolCall | MalformedCall) -> str:
    """The call as the models write it; a malformed one as it was written."""
    if isinstance(call, MalformedCall):
        return call.text
    body = {"name": call.name, "arguments": dict(call.arguments)}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def write_turn(turn: AssistantTurn) -> str:
    """Reasoning, then text, then the calls, each call on its own lines."""
    reasoning = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    return reasoning + "\n".join([turn.text] * bool(turn.text) + [write_call(call) for call in turn.calls])


def read_turn(text: str, *, truncated: bool) -> AssistantTurn:
    """What a turn says. Never raises: a call that cannot be read is a `MalformedCall`.

    Text before, between and after calls is kept, stripped, joined by newlines. truncated: the token limit ended the
    turn, so a call that stays open was cut off.
    """
    outside: list[str] = []
    after = 0  # the first part of `outside` that stands behind a call
    reasoning: list[str] = []
    calls: list[ToolCall | MalformedCall] = []
    position = 0
    while opening := _OPENING.search(text, position):
        outside.append(text[position : opening.start()])
        if opening.group() == "<think>":
            thought, _, rest = text[opening.end() :].partition("</think>")
            reasoning.append(thought)
            position = len(text) - len(rest)
        else:
            call, position = _read_call(text, opening, truncated)
            calls.append(call)
            after = after or len(outside)
    outside.append(text[position:])
    text_after_call = bool(calls) and bool(_join(outside[after:]))
    return AssistantTurn(_join(outside), _join(reasoning), tuple(calls), truncated, text_after_call, text)


def _join(parts: list[str]) -> str:
    return "\n".join(part.strip() for part in parts if part.strip())


def _read_call(text: str, opening: re.Match[str], truncated: bool) -> tuple[ToolCall | MalformedCall, int]:
    """The call that starts at `opening`, and the position behind it."""
    outcome, end = _read_object(text, opening.end())
    closing = _CALL_TAG.search(text, end)
    stop = len(text) if closing is None else closing.end()
    if closing is None:
        outcome = "the token limit cut it off" if truncated else "</tool_call> is missing"
    elif closing.group() == "<tool_call>":
        outcome, stop = "</tool_call> is missing before the next <tool_call>", closing.start()
    elif isinstance(outcome, ToolCall) and text[end : closing.start()].strip():
        outcome = "there is something between the JSON object and </tool_call>"
    if isinstance(outcome, ToolCall):
        return outcome, stop
    error = f"This tool call was not run: {outcome}. The form is {_RIGHT_FORM}"
    return MalformedCall(text[opening.start() : stop], error), stop


def _read_object(text: str, start: int) -> tuple[ToolCall | str, int]:
    """The call whose JSON starts at `start`, or its fault, and the position behind what could be read."""
    space = _SPACE.match(text, start)
    start = end = space.end() if space else start
    try:
        value, end = DECODER.raw_decode(text, start)
        return _as_call(value), end
    except json.JSONDecodeError as error:
        return f"invalid JSON, {error.msg.removesuffix(' at')} at character {error.pos - start + 1}", end
    except ValueError as error:
        return str(error), end
    except RecursionError:
        return too_deep(_MAX_DEPTH), end


def _as_call(value: Any) -> ToolCall:
    """Raises ValueError with a fault for the model."""
    _check_value(value)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    for key in ("name", "arguments"):
        if key not in value:
            raise ValueError(f'"{key}" is missing')
    for key in value:
        if key not in ("name", "arguments"):
            raise ValueError(f'{json.dumps(key[:40])} does not belong beside "name" and "arguments"')
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str):
        raise ValueError('"name" is not a string')
    if isinstance(arguments, str):
        try:
            arguments = DECODER.decode(arguments)
        except json.JSONDecodeError:
            raise ValueError('"arguments" is a string, not an object') from None
        _check_value(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" is not an object')
    return ToolCall(name, arguments)


def _check_value(value: Any) -> None:
    """Refuses what would fail later, when the value is written as JSON or its text is encoded. Raises ValueError."""
    check_value(value, _MAX_DEPTH)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a \\u escape is half of a surrogate pair") from None
