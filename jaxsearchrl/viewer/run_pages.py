"""The page of a run, and of several."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.telemetry.alarms import alarm_history
from jaxsearchrl.viewer import curves
from jaxsearchrl.viewer.render import Here, render
from jaxsearchrl.viewer.runs import Run

_HEADLINES = ("reward", "score/f_beta", "score/exact", "score/precision", "score/recall")


def run_page(here: Here, run: Run) -> str:
    """Curves, alarms, steps, checkpoints, settings."""
    rows, fault = _metrics(run)
    links: dict[str, dict[float, str]] = {}
    for place in run.files():
        links.setdefault(place.split, {})[place.step] = here.url(f"{run.base}rollouts/{place.path}.html")
    train = [row for row in rows if row["kind"] == "train"]
    charts = curves.evaluation(rows, links) + curves.training(rows, links.get("train", {}))
    return render(
        "run.html",
        here,
        run=run,
        fault=fault,
        charts=charts,
        alarms=alarm_history(train)[::-1],
        splits={split: sorted(steps.items()) for split, steps in links.items()},
        table=_table(rows),
        saved=run.saved(),
        config=run.config,
        report=run.report(),
        others=[other for other in here.runs if other is not run],
        levels=curves.SMOOTHING,
    )


def overview(here: Here) -> str:
    """All runs in a folder: where each stands, and their curves one over the other."""
    read = [(run, *_metrics(run)) for run in here.runs]
    drawn = [(run, rows) for run, rows, _ in read if rows]
    return render(
        "overview.html",
        here,
        runs=[(run, _headline(rows), fault) for run, rows, fault in read],
        drawn=[run for run, _ in drawn],
        charts=curves.overlaid([rows for _, rows in drawn], [run.name for run, _ in drawn]),
        levels=curves.SMOOTHING,
        colors=curves.COLORS,
    )


def _metrics(run: Run) -> tuple[list[dict[str, Any]], str]:
    """The rows and no fault, or no rows and what is wrong with the file."""
    try:
        return run.metrics(), ""
    except UserError as error:
        return [], str(error)


def _headline(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where a run stands."""
    train = [row for row in rows if row["kind"] == "train"]
    evals = [row for row in rows if row["kind"] == "eval"]
    name = next((name for name in _HEADLINES[1:] if any(name in row for row in rows)), "reward")
    return {
        "step": train[-1]["step"] if train else 0,
        "reward": train[-1].get("reward") if train else None,
        "measure": name.rpartition("/")[2].replace("_", " "),
        "first": evals[0].get(name) if evals else None,
        "last": evals[-1].get(name) if evals else None,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Mapping[str, Any]]]:
    """The headline numbers as a table, for who cannot see or does not want curves."""
    shown = [row for row in rows if not row["kind"].startswith("warm_start/")]
    names = [name for name in _HEADLINES if any(name in row for row in shown)]
    return names, shown
