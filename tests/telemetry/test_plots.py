"""Plots: a panel for what there is, none for what there is not."""

from pathlib import Path

import matplotlib.image
import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.telemetry.metrics_file import MetricsFile
from jaxsearchrl.telemetry.plots import TRAINING, write_plots


def panel_names(title: str, row: dict) -> list[str]:
    (panel,) = [panel for panel in TRAINING if panel.title == title]
    return panel.present([row])


def test_a_panel_draws_what_its_names_stand_for():
    row = {"score/f1": 0.1, "score/bonus": 0.2, "score/recall": None, "seconds/step": 3.0, "seconds/update": 2.0}
    assert panel_names("Quality of the curated set", row) == ["score/f1"]
    assert panel_names("Other parts of the score", row) == ["score/bonus"]
    assert panel_names("Seconds of a step by phase", row) == ["seconds/update"]
    assert panel_names("Reward", row) == []


def test_pictures_are_written_for_what_the_run_has(tmp_path: Path):
    assert write_plots(tmp_path) == []
    file = MetricsFile(tmp_path)
    for step in (1, 2):
        file.append(step, "train", {"reward": 0.1 * step, "learn/loss": float("nan"), "seconds/update": 1.0})
    (training,) = write_plots(tmp_path)
    assert training == tmp_path / "plots" / "training.png"
    narrow = matplotlib.image.imread(training)
    assert narrow.min() < 0.5  # something is drawn
    file.append(2, "eval", {"score/f_beta": 0.3, "score/f_beta_low": 0.2, "score/f_beta_high": 0.4, "reward": 0.2})
    assert [path.name for path in write_plots(tmp_path)] == ["training.png", "evaluation.png"]


def test_a_broken_metrics_file_is_named(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("?\n")
    with pytest.raises(UserError, match="line 1"):
        write_plots(tmp_path)
