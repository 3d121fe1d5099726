"""What the rollout loop knows of a sampler: requests in, results out. The engine is one, tests script another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

StopReason = Literal["stop", "stop_string", "length"]


@dataclass(frozen=True)
class SampleRequest:
    """Asks for the next turn of a trajectory.

    uid: names the trajectory and its random stream; below 2**31. tokens: the whole trajectory so far, which must start
    with what the sampler already holds of it. limit: tokens to sample at most, at least 1. find_stop: given the turn's
    ids, how many to keep when a stop string is complete (see chat/stops.py), else None.
    """

    uid: int
    tokens: Sequence[int]
    limit: int
    temperature: float
    find_stop: Callable[[Sequence[int]], int | None] | None = None


@dataclass(frozen=True)
class SampleResult:
    """What was sampled, the stop token included. logprobs: in nats, of the distribution that was sampled from.

    routes: which experts the passes took that the ids were sampled from, a number each (see models/routes.py); empty
    where there are none.
    """

    uid: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: StopReason
    routes: tuple[int, ...] = ()


class Sampler(Protocol):
    """One slot per live trajectory, from its first request until `release`."""

    @property
    def capacity(self) -> int:
        """Tokens that a trajectory may have, its last sampled one included."""
        ...

    @property
    def free_slots(self) -> int: ...

    def submit(self, request: SampleRequest) -> None:
        """Queues a turn. Raises ValueError when the trajectory's past changed, no slot is free, or it would not fit.

        A new trajectory that is refused takes no slot.
        """
        ...

    def poll(self) -> list[SampleResult]:
        """Works on all queued turns for a while; returns those that ended, by uid: none, perhaps."""
        ...

    def release(self, uid: int) -> None:
        """Ends a trajectory; its slot is free again."""
        ...
