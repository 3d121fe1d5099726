"""Draws a run's metrics.jsonl: plots/training.png and plots/evaluation.png.

Each panel answers one question about a run; a panel without numbers is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.telemetry.metrics_file import read_metrics

Rows = Sequence[Mapping[str, Any]]

COLORS = ("#2a6f97", "#e07a5f", "#5a9367", "#9a6fb0", "#d9a441", "#7f7f7f", "#b5485d", "#4db6ac")
_COLUMNS = 3
# Parts of the score that have a panel of their own.
_QUALITY = ("score/precision", "score/recall", "score/f1", "score/f_beta")
_CORRECTIONS = tuple(
    f"score/{name}"
    for name in ("format_penalty", "invalid_curation_penalty", "unfinished_penalty", "document_cost", "discovery_bonus")
)
_MISTAKES = tuple(
    f"score/{name}" for name in ("malformed_calls", "off_form_calls", "refused_ids", "duplicate_calls", "reminders")
)
_ELSEWHERE = ("score/curated_count", "score/empty", "score/turns", "score/tool_calls")


@dataclass(frozen=True)
class Panel:
    """Lines to draw against the step. A name that ends in "*" stands for all metrics that begin so, `without` some."""

    title: str
    names: tuple[str, ...]
    without: tuple[str, ...] = ()
    share: bool = False
    from_zero: bool = False
    stacked: bool = False

    def present(self, rows: Rows) -> list[str]:
        """The panel's metrics that some row has a number for."""
        seen = sorted({name for row in rows for name, value in row.items() if value is not None})
        chosen = []
        for name in self.names:
            matches = [other for other in seen if other.startswith(name[:-1])] if name.endswith("*") else [name]
            chosen += [match for match in matches if match in seen and match not in (*chosen, *self.without)]
        return chosen


TRAINING = (
    Panel("Reward", ("reward",)),
    Panel("Quality of the curated set", _QUALITY, share=True),
    Panel("Corrections of the reward", _CORRECTIONS),
    Panel("Mistakes per episode", _MISTAKES, from_zero=True),
    Panel("Other parts of the score", ("score/*",), without=(*_QUALITY, *_CORRECTIONS, *_MISTAKES, *_ELSEWHERE)),
    Panel("How episodes end", ("rate/empty", "rate/finished", "rate/truncated"), share=True),
    Panel("Tool calls", ("calls/valid", "calls/duplicate"), share=True),
    Panel("Groups without signal", ("groups/no_signal", "groups/all_good", "groups/all_bad"), share=True),
    Panel("Documents, turns and calls per episode", ("score/curated_count", "turns", "calls"), from_zero=True),
    Panel("Tokens per episode", ("tokens/*",), from_zero=True),
    Panel("Entropy (nats per token)", ("entropy",)),
    Panel("Sampler against learner (log-prob gap, nats)", ("learn/logprob_gap",), from_zero=True),
    Panel("Gradient norm", ("learn/grad_norm",), from_zero=True),
    Panel("Loss", ("learn/loss",)),
    Panel("Seconds of a step by phase", ("seconds/*",), without=("seconds/step",), stacked=True),
    Panel("Seconds of an episode", ("episode_seconds/*",), from_zero=True),
)


def write_plots(workdir: str | Path) -> list[Path]:
    """Writes the PNGs that the metrics allow and returns their paths. Raises UserError for a broken metrics.jsonl."""
    rows = read_metrics(workdir)
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = {row["kind"]: [] for row in rows if row["kind"].startswith("eval")}
    for row in rows:
        evaluations.get(row["kind"], []).append(row)
    panels: dict[str, list[tuple[str, Callable[[Any], None]]]] = {
        "training": [(p.title, lambda axes, p=p: _draw_panel(axes, train, p)) for p in TRAINING if p.present(train)],
        "evaluation": [
            (name, lambda axes, name=name: _draw_estimates(axes, evaluations, name)) for name in estimated(evaluations)
        ],
    }
    return [write_figure(Path(workdir) / "plots" / f"{name}.png", drawn) for name, drawn in panels.items() if drawn]


def write_figure(path: Path, panels: Sequence[tuple[str, Callable[[Any], None]]], xlabel: str = "step") -> Path:
    """Draws the panels (title, function of the axes) three in a line, each with a legend if it has several lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 3.2 * lines), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for number, (title, draw) in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, columns, number)
        draw(axes)
        axes.set_title(title, fontsize=11, loc="left")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.set_xlabel(xlabel, fontsize=9)
        axes.tick_params(labelsize=9)
        axes.grid(color="#e4e4e4", linewidth=0.8)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize=8, edgecolor="none", framealpha=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _draw_panel(axes: Any, rows: Rows, panel: Panel) -> None:
    names = panel.present(rows)
    if panel.stacked:
        steps = [row["step"] for row in rows]
        layers = [[row.get(name) or 0.0 for row in rows] for name in names]
        axes.stackplot(steps, layers, labels=[_label(name) for name in names], colors=_colors(len(names)), alpha=0.85)
    else:
        for name, color in zip(names, _colors(len(names)), strict=True):
            steps, values = _series(rows, name)
            axes.plot(steps, values, label=_label(name), color=color, linewidth=1.6, marker=".", markersize=5)
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    elif panel.from_zero:
        axes.set_ylim(bottom=0)


def estimated(evaluations: Mapping[str, Rows]) -> list[str]:
    """The metrics of any evaluation that have an interval, reward and quality first."""
    names = {name[:-4] for rows in evaluations.values() for row in rows for name in row if name.endswith("_low")}
    first = [name for name in ("reward", *reversed(_QUALITY)) if name in names]
    return first + sorted(names - set(first))


def _draw_estimates(axes: Any, evaluations: Mapping[str, Rows], name: str) -> None:
    for (kind, rows), color in zip(evaluations.items(), _colors(len(evaluations)), strict=True):
        measured = [row for row in rows if row.get(f"{name}_low") is not None]
        steps, values = _series(measured, name)
        axes.plot(steps, values, label=kind, color=color, linewidth=1.6, marker="o", markersize=4)
        low, high = (_series(measured, f"{name}_{bound}")[1] for bound in ("low", "high"))
        axes.fill_between(steps, low, high, color=color, alpha=0.16, linewidth=0)


def _series(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """Steps and values where there is a number."""
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _label(name: str) -> str:
    return name.rpartition("/")[2].replace("_", " ")


def _colors(count: int) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(count)]
