"""Metric writers: the file is the truth, copies may fail, and a resumed run leaves no trace of what it does again."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxsearchrl.config import TelemetryConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.telemetry import writers as writers_module
from jaxsearchrl.telemetry.metrics_file import MetricsFile, read_metrics
from jaxsearchrl.telemetry.writers import MetricWriters

OFF = TelemetryConfig(tensorboard=False)


def test_a_row_is_one_sorted_line_that_is_there_at_once(tmp_path: Path):
    with MetricWriters(tmp_path, OFF) as writers:
        assert writers.write(1, "train", {"b": 2, "a": 0.5}) == 0
        assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "train", "step": 1, "a": 0.5, "b": 2.0}\n'
        writers.write(1, "eval", {"a": 1.0})
    assert read_metrics(tmp_path, "eval") == [{"kind": "eval", "step": 1, "a": 1.0}]
    assert len(read_metrics(tmp_path)) == 2


def test_numbers_that_are_not_finite_are_null_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with MetricWriters(tmp_path, OFF) as writers:
        assert writers.write(1, "train", {"loss": float("nan"), "gap": float("inf"), "reward": 0.0}) == 2
        assert writers.write(2, "train", {"loss": float("nan"), "reward": -float("inf")}) == 2
    assert read_metrics(tmp_path)[:1] == [{"kind": "train", "step": 1, "gap": None, "loss": None, "reward": 0.0}]
    assert [message.split(", ", 1)[1] for message in caplog.messages] == [
        "these metrics are not finite: train/gap, train/loss",
        "these metrics are not finite: train/reward",  # each is named once, not at every step
    ]


def test_a_resumed_run_drops_later_lines_and_writes_the_file_of_a_run_that_never_stopped(tmp_path: Path):
    def run(folder: Path, first: int, last: int) -> None:
        with MetricWriters(folder, OFF) as writers:
            writers.truncate_after(first - 1)
            for step in range(first, last + 1):
                writers.write(step, "train", {"reward": step / 10})
                if step % 2 == 0:
                    writers.write(step, "eval", {"reward": step / 20})

    run(tmp_path / "straight", 1, 6)
    run(tmp_path / "resumed", 1, 5)
    run(tmp_path / "resumed", 4, 6)
    files = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("straight", "resumed")]
    assert files[0] == files[1]


def test_a_step_twice_is_an_error_also_after_reopening(tmp_path: Path):
    MetricsFile(tmp_path).append(3, "train", {"a": 1.0})
    file = MetricsFile(tmp_path)
    for step in (3, 2):
        with pytest.raises(ValueError, match="already has train metrics of step 3"):
            file.append(step, "train", {"a": 1.0})
    file.append(3, "eval", {"a": 1.0})
    file.truncate_after(2)
    file.append(3, "train", {"a": 2.0})
    with pytest.raises(ValueError, match="cannot be called 'step'"):
        file.append(4, "train", {"step": 1.0})


def test_a_half_written_line_is_not_read_and_gone_after_opening(tmp_path: Path):
    MetricsFile(tmp_path).append(1, "train", {"a": 1.0})
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "train", "st')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
    MetricsFile(tmp_path).append(2, "train", {"a": 1.0})
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


def test_a_broken_line_is_named(tmp_path: Path):
    lines = ["nonsense", '{"kind": "train"}', "[]", '{"kind": "train", "step": "1"}', '{"kind": "train", "step": true}']
    lines += ['{"kind": ["train"], "step": 1}', '{"kind": "\udce9", "step": 1}', "[" * 100_000]  # \udce9: not UTF-8
    for line in lines:
        text = f'{{"kind": "train", "step": 1}}\n{line}\n'
        (tmp_path / "metrics.jsonl").write_bytes(text.encode(errors="surrogateescape"))
        for read in (read_metrics, MetricsFile):
            with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
                read(tmp_path)


def test_tensorboard_has_the_rows_and_hides_what_is_done_again(tmp_path: Path):
    from tensorboardX.proto.event_pb2 import Event

    for after, values in ((0, {1: 0.1, 2: 0.2}), (1, {2: 0.25})):
        with MetricWriters(tmp_path, TelemetryConfig()) as writers:
            writers.truncate_after(after)
            for step, value in values.items():
                writers.write(step, "train", {"reward": value, "bad": float("nan")})
    events: list[Event] = []
    for path in sorted((tmp_path / "tensorboard").iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    scalars = [(e.step, v.tag, round(v.simple_value, 4)) for e in events for v in e.summary.value]
    assert scalars == [(1, "train/reward", 0.1), (2, "train/reward", 0.2), (2, "train/reward", 0.25)]
    assert [e.step for e in events if e.session_log.status == 1][-1] == 2


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(writers_module, "_installed", lambda module: False)
    for config, name in (
        (TelemetryConfig(tensorboard=False, wandb_project="p"), "wandb"),
        (TelemetryConfig(tensorboard=False, swanlab_project="p"), "swanlab"),
    ):
        with pytest.raises(UserError, match=rf"telemetry\.{name}_project needs .* 'jaxsearchrl\[{name}\]'"):
            MetricWriters(tmp_path, config)
    with MetricWriters(tmp_path, TelemetryConfig()) as writers:
        writers.write(1, "train", {"a": 1.0})
        writers.write(2, "train", {"a": 1.0})
    assert caplog.text.count("jaxsearchrl[tensorboard]") == 1
    assert len(read_metrics(tmp_path)) == 2


class FakeDashboard:
    """Stands for wandb and swanlab: a module with `init`, a run with `log`; fails from the given step on."""

    def __init__(self, fails_at: int) -> None:
        self.fails_at, self.rows, self.ids, self.finished = fails_at, [], [], 0

    def init(self, **options: object) -> SimpleNamespace:
        self.ids.append(options["id"])
        return SimpleNamespace(define_metric=lambda *a, **k: None, log=self.log, finish=self.finish)

    def log(self, row: dict[str, float], step: int | None = None) -> None:
        step = int(row["step"]) if step is None else step
        if step >= self.fails_at:
            raise ConnectionError("no network")
        self.rows.append((step, row))

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_dashboard_that_fails_is_switched_off_with_one_warning_and_the_run_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    dashboard = FakeDashboard(fails_at=2)
    monkeypatch.setitem(sys.modules, name, dashboard)  # type: ignore[arg-type]
    monkeypatch.setattr(writers_module, "_installed", lambda module: True)
    config = TelemetryConfig(tensorboard=False, **{f"{name}_project": "project"})
    for first in (1, 4):
        with MetricWriters(tmp_path, config) as writers:
            for step in range(first, first + 3):
                writers.write(step, "train", {"reward": 0.5, "loss": float("nan")})
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == [1, 2, 3, 4, 5, 6]
    assert [(step, row["train/reward"], "train/loss" in row) for step, row in dashboard.rows] == [(1, 0.5, False)]
    assert caplog.text.count(f"{name} is switched off for this run, which goes on: no network") == 2
    assert dashboard.finished == 2
    assert len(set(dashboard.ids)) == 1  # the resumed run goes on under its id
