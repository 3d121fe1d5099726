"""The contract of a chat format: between messages and tokens, in both directions, without ever re-rendering history."""

from collections.abc import Sequence
from typing import Protocol

from jaxsearchrl.messages import AssistantTurn, Message, ToolSpec


class ChatFormat(Protocol):
    """One wire format with one tokenizer."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn when sampled."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts that end a turn when the decoded turn contains them; empty for formats with a stop id."""
        ...

    @property
    def one_call_a_turn(self) -> bool:
        """Whether a turn ends with its first call, so that `turn_ids` takes no turn with several."""
        ...

    @property
    def vocab_size(self) -> int:
        """Largest usable id + 1: ids from here on are padding rows of the embedding and are never sampled."""
        ...

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a conversation's start, the generation prompt included."""
        ...

    def observation_ids(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids that follow a sampled turn: what the turn's closing lacks, the messages, the next generation prompt.

        stopped: the turn ended on a stop id (else the closing token is part of these ids).
        """
        ...

    def turn_ids(self, turn: AssistantTurn) -> list[int]:
        """Ids that a policy would have sampled to say `turn`, stop id included (scripted agents, supervised rows)."""
        ...

    def parse(self, ids: Sequence[int], *, stopped: bool, tools: Sequence[ToolSpec] = ()) -> AssistantTurn:
        """What sampled ids say. Never raises: what cannot be read is a `MalformedCall`.

        tools: those of the prompt, for a format whose calls do not say the types of their arguments.
        """
        ...

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a piece of text; the unit of observation budgets."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of any slice of ids, special tokens included; broken characters as U+FFFD."""
        ...
