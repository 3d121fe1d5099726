"""SIGTERM (a preemption notice, a scheduler's stop) ends a run at the next safe point instead of anywhere."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from jaxsearchrl import hosts


class Interrupted(Exception):
    """The run was asked to stop; what it has is whole and can be saved."""


class Interruption:
    """Both raise Interrupted once the process was asked to stop, or another process of the run.

    `check` between the parts of a step: processes agree. `heed` within rollouts, where each is somewhere else.
    """

    def __init__(self) -> None:
        self.asked = False

    def check(self) -> None:
        if hosts.any_of(self.asked):
            raise Interrupted

    def heed(self) -> None:
        if self.asked or hosts.others_stop():
            raise Interrupted


@contextmanager
def interruption() -> Iterator[Interruption]:
    """Listens for SIGTERM within the block; a second SIGTERM acts at once."""
    state = Interruption()

    def ask(number: int, _: object) -> None:
        state.asked = True
        hosts.ask_to_stop()
        signal.signal(number, signal.SIG_DFL)

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield state
    finally:
        signal.signal(signal.SIGTERM, before)
