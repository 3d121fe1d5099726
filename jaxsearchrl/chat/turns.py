"""Turns of ChatML: reasoning in `<think>` … `</think>`, and calls between `<tool_call>` and `</tool_call>`.

What stands in a call is the business of `tool_json` and `tool_xml`. What a model writes is untrusted: reading never
raises. Calls inside `<think>` … `</think>` are reasoning and are not read; a `<think>` that stays open reaches to the
end.
"""

import re
from collections.abc import Callable

from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall

CALL_TAG = re.compile(r"</?tool_call>")
_OPENING = re.compile(r"<think>|<tool_call>")

ReadCall = Callable[[str, re.Match[str], bool], tuple[ToolCall | MalformedCall, int]]
"""From a text, its opening tag and whether the token limit ended it to the call there and the position behind it."""


def write_turn(turn: AssistantTurn, write_call: Callable[[ToolCall | MalformedCall], str], between: str = "\n") -> str:
    """Reasoning, then text, then (after `between`) the calls, each on its own lines."""
    reasoning = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    calls = "\n".join(map(write_call, turn.calls))
    return reasoning + turn.text + between * bool(turn.text and calls) + calls


def read_turn(text: str, read_call: ReadCall, *, truncated: bool) -> AssistantTurn:
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
            call, position = read_call(text, opening, truncated)
            calls.append(call)
            after = after or len(outside)
    outside.append(text[position:])
    text_after_call = bool(calls) and bool(join_parts(outside[after:]))
    return AssistantTurn(
        join_parts(outside), join_parts(reasoning), tuple(calls), truncated, text_after_call, written=text
    )


def join_parts(parts: list[str]) -> str:
    """The parts of a turn that are not blank, stripped, one under the other."""
    return "\n".join(part.strip() for part in parts if part.strip())


def refused(fault: str, right_form: str) -> str:
    """What the model is told about a call that could not be read."""
    return f"This tool call was not run: {fault}. The form is {right_form}"
