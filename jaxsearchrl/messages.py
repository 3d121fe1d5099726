"""What chat formats, environments and agents say to each other: messages, tools and calls, no tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call: a name (known or not) and an object of arguments (valid or not: the environment checks)."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class MalformedCall:
    """A call that could not be read. `error` is written for the model: it names the fault and the right form."""

    text: str
    error: str


@dataclass(frozen=True)
class AssistantTurn:
    """One turn of the policy. Calls stand in the order in which they were written.

    truncated: the token limit cut the turn short, so its last call, if unfinished, is a `MalformedCall`.
    text_after_call: some of the text stands behind a call.
    written: the whole turn as the policy wrote it, "" for a turn that was not read from text.
    off_form_calls: calls that could be read though they are not written in the format's own form.
    tokens_left: of the episode's capacity once the turn was written; None for an agent without tokens.
    Two turns that say the same are equal, however they were written, and wherever.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall | MalformedCall, ...] = ()
    truncated: bool = False
    text_after_call: bool = False
    written: str = field(default="", compare=False)
    off_form_calls: int = field(default=0, compare=False)
    tokens_left: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Message:
    """A message of the conversation. `name` is the tool's name when the role is "tool"; "assistant" has a `turn`."""

    role: Role
    content: str = ""
    name: str = ""
    turn: AssistantTurn | None = field(default=None)
