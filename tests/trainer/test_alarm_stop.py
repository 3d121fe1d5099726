"""`alarms.stop_on`: an alarm ends a run, which can go on."""

import sys

import pytest

from jaxsearchrl.checkpoint import Checkpoints
from jaxsearchrl.config_flags import run_app
from jaxsearchrl.errors import StoppedByAlarm
from jaxsearchrl.telemetry.metrics_file import read_metrics


def test_the_run_ends_with_a_checkpoint_and_goes_on_without_the_alarm(train, straight, left_behind, tmp_path):
    """No episode of the tiny run finishes, which four steps suffice to see; every third has a checkpoint anyway."""
    for _ in range(2):  # the same command stops at once
        with pytest.raises(StoppedByAlarm, match=r"^not finished: .*Step 4 is saved; .*leave 'not finished' out"):
            train(tmp_path, alarms__stop_on=("KL blow-up", "not finished", "entropy fall"), eval__every=0)
        assert [row["step"] for row in read_metrics(tmp_path, "train")] == [1, 2, 3, 4]
        assert (tmp_path / "adapters" / "step_000004" / "adapter_config.json").exists()
        assert "not finished" in (tmp_path / "report.html").read_text()
        with Checkpoints(tmp_path / "checkpoints") as checkpoints:
            assert checkpoints.steps()[-1] == 4
    train(tmp_path, alarms__stop_on=("entropy collapse",), eval__every=0)
    there, here = left_behind(straight), left_behind(tmp_path)
    assert here["state"] == there["state"]
    assert here["metrics"] == [row for row in there["metrics"] if row["kind"] == "train"]


def test_its_exit_status_tells_it_from_a_fault(monkeypatch, capsys):
    def stop(overrides):
        raise StoppedByAlarm("truncation: …")

    monkeypatch.setattr(sys, "argv", ["main"])
    with pytest.raises(SystemExit) as end:
        run_app(stop)
    assert end.value.code == 3
    assert capsys.readouterr().err == "stopped: truncation: …\n"
