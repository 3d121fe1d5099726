"""The contracts of an environment and of an agent that plays in one: plain Python, messages, no tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxsearchrl.messages import AssistantTurn, Message, ToolSpec


@dataclass(frozen=True)
class Score:
    """What an episode is worth: the reward, its parts by name (they are logged), and an outcome word.

    Raises ValueError for a non-finite reward or part.
    """

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    outcome: str = ""

    def __post_init__(self) -> None:
        for name, value in {"reward": self.reward, **self.parts}.items():
            if not math.isfinite(value):
                raise ValueError(f"non-finite {name}: {value}")


class Environment(Protocol):
    """One episode of one task.

    A model's mistake is an observation that names the fault. InfrastructureError may leave `step`; the loop retries the
    whole step, so a step that raised it must not have changed anything.
    """

    @property
    def tools(self) -> Sequence[ToolSpec]: ...

    def reset(self) -> list[Message]:
        """The conversation's first messages."""
        ...

    def step(self, turn: AssistantTurn) -> tuple[list[Message], bool]:
        """Answers a turn: the observation's messages, and whether the episode is over.

        One message per call, in call order; the last may stand for all calls that are too many.
        """
        ...

    def score(self) -> Score:
        """The score of the episode as it stands; may be asked at any time (an episode may end by turns or context)."""
        ...

    def last_step(self) -> Mapping[str, Any]:
        """What the records keep of the last step: calls with outcome, documents encountered with rank, curated set."""
        ...

    @property
    def stop_reason(self) -> str:
        """Why the environment ended the episode ("finish", "turns", "no_call", ...); "" while it runs."""
        ...


class Agent(Protocol):
    """Messages in, a turn out."""

    def act(self, messages: Sequence[Message]) -> AssistantTurn:
        """The turn that follows the conversation so far."""
        ...
