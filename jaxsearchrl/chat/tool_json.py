"""Tool calls as JSON (Qwen2.5, Qwen3, SmolLM2): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

What a model writes is untrusted: reading never raises. Our rules, where the models' own documentation leaves room:

* A call is one object with exactly "name" (a string) and "arguments" (an object, or a string that holds one as JSON).
  A missing or further key, a key given twice, NaN, Infinity, numbers out of range, half a surrogate pair, and nesting
  deeper than 32 levels are refused. Names and arguments are not checked against the tools; the environment does that.
* A call must be closed by `</tool_call>`, even when its JSON is complete.
* A `</tool_call>` inside a JSON string belongs to the string.
"""

import json
import re
from typing import Any

from jaxsearchrl.chat import turns, untrusted_json
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall
from jaxsearchrl.strict_json import DECODER, too_deep

_SPACE = re.compile(r"\s*")

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
    return turns.write_turn(turn, write_call)


def read_turn(text: str, *, truncated: bool) -> AssistantTurn:
    """What a turn says; see `turns.read_turn`."""
    return turns.read_turn(text, read_call, truncated=truncated)


def read_call(text: str, opening: re.Match[str], truncated: bool) -> tuple[ToolCall | MalformedCall, int]:
    """The call that starts at `opening`, and the position behind it."""
    outcome, end = _read_object(text, opening.end())
    closing = turns.CALL_TAG.search(text, end)
    stop = len(text) if closing is None else closing.end()
    if closing is None:
        outcome = "the token limit cut it off" if truncated else "</tool_call> is missing"
    elif closing.group() == "<tool_call>":
        outcome, stop = "</tool_call> is missing before the next <tool_call>", closing.start()
    elif isinstance(outcome, ToolCall) and text[end : closing.start()].strip():
        outcome = "there is something between the JSON object and </tool_call>"
    if isinstance(outcome, ToolCall):
        return outcome, stop
    return MalformedCall(text[opening.start() : stop], turns.refused(outcome, _RIGHT_FORM)), stop


def _read_object(text: str, start: int) -> tuple[ToolCall | str, int]:
    """The call whose JSON starts at `start`, or its fault, and the position behind what could be read."""
    space = _SPACE.match(text, start)
    start = end = space.end() if space else start
    try:
        value, end = DECODER.raw_decode(text, start)
        return _as_call(value), end
    except json.JSONDecodeError as error:
        return untrusted_json.fault(error, start), end
    except ValueError as error:
        return str(error), end
    except RecursionError:
        return too_deep(untrusted_json.MAX_DEPTH), end


def _as_call(value: Any) -> ToolCall:
    """Raises ValueError with a fault for the model."""
    untrusted_json.check(value)
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
        untrusted_json.check(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" is not an object')
    return ToolCall(name, arguments)
