"""The token buffer that everything else passes along.

Append-only: sampled ids are never decoded and encoded again, so the next prompt is always the previous buffer plus the
observation's ids.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

SpanKind = Literal["prompt", "sampled", "observation"]


@dataclass(frozen=True)
class Span:
    """Positions [start, stop) of a trajectory that came in by one call."""

    kind: SpanKind
    start: int
    stop: int


@dataclass
class Trajectory:
    """`tokens`, `action_mask`, `sample_logprobs` and `routes` always have one length, T.

    action_mask is 1 exactly on sampled ids. sample_logprobs holds, on sampled ids, the log-prob (nats, float32) under
    the distribution that was sampled from, and 0.0 elsewhere. routes says, in a number, which experts the sampler took
    for a sampled id; 0 elsewhere and where it is not known (no experts, no sampler, a record).
    """

    tokens: list[int] = field(default_factory=list)
    action_mask: list[int] = field(default_factory=list)
    sample_logprobs: list[float] = field(default_factory=list)
    routes: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def action_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(self.action_mask)

    def append_prompt(self, ids: Sequence[int]) -> None:
        """Starts the buffer. Raises ValueError when it has tokens already or `ids` is empty."""
        if self.tokens:
            raise ValueError("a prompt can only start a trajectory")
        if not ids:
            raise ValueError("an empty prompt")
        self._grow("prompt", ids, 0)

    def append_sampled(self, ids: Sequence[int], logprobs: Sequence[float], routes: Sequence[int] = ()) -> None:
        """Adds what was sampled, the stop token included; routes may be empty.

        Raises ValueError for unequal lengths, non-finite numbers.
        """
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} sampled ids but {len(logprobs)} log-probs")
        if len(routes) not in (0, len(ids)):
            raise ValueError(f"{len(ids)} sampled ids but {len(routes)} routes")
        if not all(math.isfinite(p) for p in logprobs):
            raise ValueError("a sampled token has a non-finite log-prob")
        self._grow("sampled", ids, 1, logprobs, routes)

    def append_observation(self, ids: Sequence[int]) -> None:
        """Adds what the environment or the chat format wrote; never trained on."""
        self._grow("observation", ids, 0)

    def _grow(
        self,
        kind: SpanKind,
        ids: Sequence[int],
        action: int,
        logprobs: Sequence[float] = (),
        routes: Sequence[int] = (),
    ) -> None:
        start, none = len(self.tokens), [0] * len(ids)
        self.tokens.extend(int(i) for i in ids)
        self.action_mask.extend([action] * len(ids))
        self.sample_logprobs.extend(float(p) for p in (logprobs if len(logprobs) else none))
        self.routes.extend(int(route) for route in (routes if len(routes) else none))
        self.spans.append(Span(kind, start, len(self.tokens)))
