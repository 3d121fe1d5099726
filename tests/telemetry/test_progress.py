"""Progress lines with a clock that the test moves."""

import io

import pytest

from jaxsearchrl import hosts
from jaxsearchrl.telemetry.progress import Progress


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_file_gets_the_start_the_end_and_few_lines_between():
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, interval=30, clock=clock)
    with progress.step(3, 16):
        with progress.phase("rollouts", total=32) as advance:
            for _ in range(32):
                clock.now += 5
                advance()
        with progress.phase("update"):
            clock.now += 40
    assert out.getvalue().splitlines() == [
        "step 3/16 rollouts 0/32",
        "step 3/16 rollouts 6/32, 00:30, eta 02:10",
        "step 3/16 rollouts 12/32, 01:00, eta 01:40",
        "step 3/16 rollouts 18/32, 01:30, eta 01:10",
        "step 3/16 rollouts 24/32, 02:00, eta 00:40",
        "step 3/16 rollouts 30/32, 02:30, eta 00:10",
        "step 3/16 rollouts done in 02:40",
        "step 3/16 update",
        "step 3/16 update done in 00:40",
        "step 3/16 done in 03:20, run eta 43:20",
    ]
    assert progress.seconds == {"rollouts": 160.0, "update": 40.0, "step": 200.0}


def test_the_run_eta_is_the_mean_of_the_steps_this_process_made_and_the_last_step_has_none():
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock=clock)
    for number, spent in ((3, 100), (4, 60), (5, 10)):
        with progress.step(number, 5):
            clock.now += spent
    assert out.getvalue().splitlines() == [
        "step 3/5 done in 01:40, run eta 03:20",
        "step 4/5 done in 01:00, run eta 01:20",
        "step 5/5 done in 00:10",
    ]


def test_a_thousand_quick_advances_are_no_flood():
    out, clock = io.StringIO(), Clock()
    with Progress(out, interval=30, clock=clock).phase("index") as advance:
        for _ in range(1000):
            clock.now += 0.1
            advance(100)
    lines = out.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "index"
    assert lines[1].startswith("index 30")
    assert lines[-1] == "index done in 01:40"


def test_a_terminal_rewrites_one_line():
    out, clock = Terminal(), Clock()
    with Progress(out, clock=clock).phase("evaluation", total=2) as advance:
        clock.now += 3661
        advance(2)
    assert out.getvalue() == (
        "\r\033[Kevaluation 0/2\r\033[Kevaluation 2/2, 1:01:01, eta 00:00\r\033[Kevaluation done in 1:01:01\n"
    )


def fail_in_a_step(progress: Progress) -> None:
    with progress.step(1, 2), progress.phase("rollouts"):
        raise KeyError("x")


def test_a_phase_that_raises_says_failed_and_the_step_does_not_end_well():
    out = io.StringIO()
    progress = Progress(out, clock=Clock())
    with pytest.raises(KeyError):
        fail_in_a_step(progress)
    progress.note("saved")
    assert out.getvalue().splitlines() == ["step 1/2 rollouts", "step 1/2 rollouts failed after 00:00", "saved"]


def test_other_processes_than_the_first_say_nothing_and_open_nothing(monkeypatch, capsys):
    monkeypatch.setattr(hosts, "is_first", lambda: False)
    monkeypatch.setattr("builtins.open", lambda *words: pytest.fail(f"opened {words}"))
    clock = Clock()
    progress = Progress(clock=clock)
    with progress.step(1, 2), progress.phase("update") as advance:
        clock.now += 5
        advance()
    progress.note("all is well")
    assert capsys.readouterr() == ("", "")
    assert progress.seconds == {"update": 5.0, "step": 5.0}
