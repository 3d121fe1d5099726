"""Signs of life: which phase a run is in, how far, and how long it will take, in a terminal and in a plain log file.

    step 3/16 rollouts 12/32, 01:05, eta 01:48
    step 3/16 rollouts done in 02:41
    step 3/16 update
    step 3/16 done in 03:20, run eta 43:20

A terminal shows one line that changes; a log file gets a line when a phase starts and ends, and between only every
`interval` seconds.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from jaxsearchrl import hosts
from jaxsearchrl.interruption import Interrupted


class Progress:
    """Announces phases. Times are wall seconds of `clock`.

    with progress.step(3, 16):
        with progress.phase("rollouts", total=32) as advance:
            advance()
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        interval: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream or (sys.stderr if hosts.is_first() else None)  # other processes say nothing
        self._live = self._stream is not None and self._stream.isatty()
        self._clear = "\r\033[K" if self._live else ""
        self._interval = 0.2 if self._live else interval
        self._clock = clock
        self._shown_at = 0.0
        self._prefix = ""
        self._run_started: float | None = None
        self._steps_done = 0
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, number: int, total: int) -> Iterator[None]:
        """Puts "step n/total" before each phase, and says at the end when the run will be over.

        `seconds` then holds the seconds of each phase of this step, and of the step as a whole ("step").
        """
        self.seconds = {}
        self._prefix = f"step {number}/{total} "
        started = self._clock()
        self._run_started = started if self._run_started is None else self._run_started
        try:
            yield
            now = self._clock()
            self._steps_done += 1
            self.seconds["step"] = now - started
            # Averages over all that this process did, evaluations and checkpoints between the steps included.
            left = (now - self._run_started) / self._steps_done * (total - number)
            eta = f", run eta {_clock_time(left)}" if number < total else ""
            self._say(f"done in {_clock_time(now - started)}{eta}")
        finally:
            self._prefix = ""

    @contextmanager
    def phase(self, name: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Announces a phase; the block gets `advance(count=1)`, to be called from the same thread.

        A block that raises ends in "failed", or "stopped" where the run was asked to stop. The seconds are added to
        `seconds[name]`.
        """
        started = self._clock()
        done = 0
        self._show(name if total is None else f"{name} 0/{total}", force=True)

        def advance(count: int = 1) -> None:
            nonlocal done
            done += count
            spent = self._clock() - started
            eta = f", eta {_clock_time(spent / done * (total - done))}" if total and 0 < done <= total else ""
            counted = f"{done}" if total is None else f"{done}/{total}"
            self._show(f"{name} {counted}, {_clock_time(spent)}{eta}", force=False)

        outcome = "failed after"
        try:
            yield advance
            outcome = "done in"
        except Interrupted:
            outcome = "stopped after"
            raise
        finally:
            spent = self._clock() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self._say(f"{name} {outcome} {_clock_time(spent)}")

    def note(self, text: str) -> None:
        """A line of its own (a result, an alarm)."""
        self._say(text)

    def _show(self, text: str, *, force: bool) -> None:
        """The changing state: a line that is overwritten in a terminal, a rare line in a file."""
        now = self._clock()
        if not force and now - self._shown_at < self._interval:
            return
        self._shown_at = now
        self._write(text + ("" if self._live else "\n"))

    def _say(self, text: str) -> None:
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"{self._clear}{self._prefix}{text}")
            self._stream.flush()


def _clock_time(seconds: float) -> str:
    """mm:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
