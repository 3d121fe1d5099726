"""What the runs of a sweep have reached, as one figure and one table.

Curves stand against the prompts seen (steps times groups a step), since a run with more groups takes fewer steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.config import Config
from jaxsearchrl.config_tree import from_json
from jaxsearchrl.telemetry.metrics import label
from jaxsearchrl.telemetry.metrics_file import read_metrics
from jaxsearchrl.telemetry.plots import COLORS, write_figure

# What is drawn and tabled of training and of evaluations, where runs have it.
_TRAINING = {"reward": "Training reward", "rate/nonempty": "Valid rollouts (scored, not empty)"}
_EVALUATION = ("score/f1", "score/f_beta", "score/exact", "reward")


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep: its folder's name, groups a step, rows of metrics.jsonl."""

    name: str
    groups: int
    rows: Sequence[dict[str, Any]]

    def series(self, kind: str, metric: str) -> tuple[list[int], list[float]]:
        """Prompts seen and values, where there is a number."""
        points = [(row["step"], row[metric]) for row in self.rows if row["kind"] == kind and _has(row, metric)]
        return [step * self.groups for step, _ in points], [value for _, value in points]


def read_runs(root: Path) -> list[SweptRun]:
    """The runs in a sweep's folder, by value. Raises UserError for a broken file."""
    runs = []
    for folder in sorted((path.parent for path in root.glob("*/metrics.jsonl")), key=lambda path: _by_value(path.name)):
        stored = folder / "config.json"
        config = from_json(Config, stored.read_text(encoding="utf-8"), str(stored))
        runs.append(SweptRun(folder.name, config.train.groups_per_step, read_metrics(folder)))
    return runs


def write_sweep_plot(runs: Sequence[SweptRun], path: Path) -> None:
    """Draws a panel for each measure that some run has, a line for each run; evaluations with their intervals."""
    panels = [(title, "train", name) for name, title in _TRAINING.items()]
    panels += [(f"Evaluation: {label(name.rpartition('/')[2])}", "eval", name) for name in _EVALUATION]
    present = [panel for panel in panels if any(run.series(*panel[1:])[0] for run in runs)]
    if present:
        drawn = [(title, lambda axes, k=kind, m=metric: _draw(axes, runs, k, m)) for title, kind, metric in present]
        write_figure(path, drawn, "prompts seen")


def _draw(axes: Any, runs: Sequence[SweptRun], kind: str, metric: str) -> None:
    for number, run in enumerate(runs):
        color = COLORS[number % len(COLORS)]
        prompts, values = run.series(kind, metric)
        axes.plot(prompts, values, label=run.name, color=color, linewidth=1.6, marker=".", markersize=5)
        (places, low), (_, high) = (run.series(kind, f"{metric}_{bound}") for bound in ("low", "high"))
        axes.fill_between(places, low, high, color=color, alpha=0.12, linewidth=0)


def summary(runs: Sequence[SweptRun]) -> str:
    """A Markdown table: steps, prompts, the last training reward, evaluations first → last with the last's interval."""
    measures = [name for name in _EVALUATION if any(run.series("eval", name)[0] for run in runs)]
    titles = ["run", "steps", "prompts", "training reward", *(label(name.rpartition("/")[2]) for name in measures)]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for run in runs:
        prompts, rewards = run.series("train", "reward")
        seen = prompts[-1] if prompts else 0
        cells = [run.name, str(seen // run.groups), str(seen), f"{rewards[-1]:.3f}" if rewards else ""]
        lines.append(f"| {' | '.join([*cells, *(_change(run, name) for name in measures)])} |")
    return "\n".join(lines) + "\n"


def _change(run: SweptRun, metric: str) -> str:
    values, low, high = (run.series("eval", f"{metric}{end}")[1] for end in ("", "_low", "_high"))
    if not values:
        return ""
    interval = f" [{low[-1]:.3f}, {high[-1]:.3f}]" if low and high else ""
    return f"{values[0]:.3f} → {values[-1]:.3f}{interval}"


def _has(row: dict[str, Any], metric: str) -> bool:
    return row.get(metric) is not None


def _by_value(name: str) -> tuple[bool, float, str]:
    """Numbers by their size, then words."""
    try:
        return False, float(name.rpartition("=")[2]), name
    except ValueError:
        return True, 0.0, name
