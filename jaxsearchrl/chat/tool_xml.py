"""Tool calls as tags (Qwen3.5): a function with its parameters, each value as it is on lines of its own.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

What a model writes is untrusted: reading never raises. Our rules, where the models' own documentation leaves room:

* A value is text, without the line break that follows the tag and the one before the closing tag. Where the tool's
  schema names another type than string, it is JSON (or `True`, `False`, `None`, as Qwen3.5's template writes these);
  what is none is left as text, for the environment to judge, but a list or an object that cannot be read is refused.
* A call reaches to the next `</tool_call>` and a value to the next `</parameter>`, so neither can hold these.
* Every tag must be closed, and nothing but white space may stand between them. A parameter stands once. Names have no
  white space and no `<` or `>`; they are not checked against the tools, the environment does that.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxsearchrl.chat import turns, untrusted_json
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall, ToolSpec

# A name has a letter or a digit, so that "..." in the right form is none: that must not be copied as it stands.
_FUNCTION = re.compile(r"\s*<function=([^<>\s]*\w[^<>\s]*)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\s]*\w[^<>\s]*)>(.*?)</parameter>\s*", re.DOTALL)
_RIGHT_FORM = "<tool_call><function=...><parameter=...>...</parameter></function></tool_call>"
_PYTHON = {"True": True, "False": False, "None": None}


def write_call(call: ToolCall | MalformedCall) -> str:
    """The call as the models write it; a malformed one as it was written."""
    if isinstance(call, MalformedCall):
        return call.text
    values = "".join(f"<parameter={key}>\n{_written(value)}\n</parameter>\n" for key, value in call.arguments.items())
    return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"


def write_turn(turn: AssistantTurn) -> str:
    """Reasoning, then text, then the calls, each call on its own lines."""
    return turns.write_turn(turn, write_call, between="\n\n")


def read_turn(text: str, tools: Sequence[ToolSpec], *, truncated: bool) -> AssistantTurn:
    """What a turn says; see `turns.read_turn`."""
    schemas = {tool.name: tool.parameters.get("properties", {}) for tool in tools}

    def read_call(text: str, opening: re.Match[str], truncated: bool) -> tuple[ToolCall | MalformedCall, int]:
        return _read_call(text, opening, truncated, schemas)

    return turns.read_turn(text, read_call, truncated=truncated)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read_call(
    text: str, opening: re.Match[str], truncated: bool, schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[ToolCall | MalformedCall, int]:
    """The call that starts at `opening`, and the position behind it."""
    start = opening.end()
    closing = turns.CALL_TAG.search(text, start)
    stop = len(text) if closing is None else closing.end()
    try:
        if closing is None:
            raise ValueError("the token limit cut it off" if truncated else "</tool_call> is missing")
        if closing.group() == "<tool_call>":
            stop = closing.start()
            raise ValueError("</tool_call> is missing before the next <tool_call>")
        return _function(text[start : closing.start()], schemas), stop
    except ValueError as error:
        return MalformedCall(text[opening.start() : stop], turns.refused(str(error), _RIGHT_FORM)), stop


def _function(body: str, schemas: Mapping[str, Mapping[str, Any]]) -> ToolCall:
    """What stands between `<tool_call>` and `</tool_call>`. Raises ValueError with a fault for the model."""
    function = _FUNCTION.match(body)
    if not function:
        raise ValueError("<function=...> with a name is missing behind <tool_call>")
    name, position = function[1], function.end()
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(body, position):
        key, text = parameter[1], parameter[2].removeprefix("\n").removesuffix("\n")
        if key in arguments:
            raise ValueError(f"the parameter {key[:40]!r} stands twice")
        arguments[key] = _value(text, schemas.get(name, {}).get(key, {}), key)
        position = parameter.end()
    rest = body[position:].strip()
    if rest.startswith("<parameter="):
        raise ValueError("</parameter> is missing, or the parameter has no name")
    if "</function>" not in rest:
        raise ValueError("</function> is missing")
    if rest != "</function>":
        raise ValueError("there is something beside the parameters between <function=...> and </tool_call>")
    return ToolCall(name, arguments)


def _value(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """What a parameter's text means. Raises ValueError that names the fault."""
    kind = schema.get("type", "string")
    if "string" in (kind if isinstance(kind, list) else [kind]):
        return text
    word = text.strip()
    if word in _PYTHON:
        return _PYTHON[word]
    try:
        return untrusted_json.read(word)
    except ValueError as error:
        if word.startswith(("[", "{")):
            raise ValueError(f"the value of {key[:40]!r} is no {kind}: {error}") from None
        return text
