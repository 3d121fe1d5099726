"""report.md: what a run has shown, in one page, and where everything lies."""

from collections.abc import Sequence
from pathlib import Path

from jaxsearchrl.evaluation.evaluate import by_measure, compare
from jaxsearchrl.evaluation.statistics import Estimate, mean_estimate, paired_difference
from jaxsearchrl.experiment import Experiment
from jaxsearchrl.records import RolloutRecord, read_records
from jaxsearchrl.tasks.curated.baselines import curate_top_k
from jaxsearchrl.tasks.curated.data import Task
from jaxsearchrl.telemetry.metrics_file import read_metrics

CHOICES = (1, 2, 3, 5, 10)
CHOOSE_ON = 128
"""The baseline's k is chosen among CHOICES on this many training tasks."""


def write_report(workdir: Path, experiment: Experiment, step: int) -> str:
    """Writes report.md and returns its text."""
    lines = [f"# {experiment.config.name or workdir.name}: what the run has shown", ""]
    steps = [row["step"] for row in read_metrics(workdir, "eval") if row["step"] <= step]
    if steps:
        lines += _evaluations(workdir, experiment, steps[0], steps[-1])
    lines += [
        "## Where things are",
        "",
        f"* metrics: `{workdir / 'metrics.jsonl'}`, plots: `{workdir / 'plots'}`",
        f"* every rollout: `{workdir / 'rollouts'}`",
        f"* adapters for PEFT, one per checkpoint: `{workdir / 'adapters'}`; full states: `{workdir / 'checkpoints'}`",
        "",
        "## What to do next",
        "",
        "* look at the plots, then at the rollouts of the best and the worst groups",
        "* train longer: the same command with a larger `--config.train.steps` goes on from here",
        "* use your own documents and questions: `configs/curated_jsonl.py`",
        "",
    ]
    text = "\n".join(lines)
    (workdir / "report.md").write_text(text, encoding="utf-8")
    return text


def _evaluations(workdir: Path, experiment: Experiment, first: int, last: int) -> list[str]:
    after = read_records(workdir, "eval", last)
    lines = [f"Evaluation tasks: {len(experiment.eval_tasks)}, {experiment.config.eval.tries} sampled tries each.", ""]
    if first < last:
        lines += _changes(read_records(workdir, "eval", first), after)
    reached = by_measure(after, "f_beta")
    if not reached:
        return [*lines, f"After step {last} no try was scored: the infrastructure failed them all.", ""]
    k, values = baseline(experiment)
    theirs = {task: [value] for task, value in values.items() if task in reached}
    return [
        *lines,
        f"F-beta after step {last}: {mean_estimate(reached)}.",
        f"Curating the top {k} of the raw question (k chosen on training tasks): {mean_estimate(theirs)}; "
        f"the policy minus this baseline: {paired_difference(reached, theirs)}.",
        "",
    ]


def _changes(before: Sequence[RolloutRecord], after: Sequence[RolloutRecord]) -> list[str]:
    lines = ["| measure | change | verdict |", "|---|---|---|"]
    for name in ("f_beta", "precision", "recall", "f1"):
        change = compare(after, before, name)
        lines.append(f"| {name} | {change or 'no task was scored in both'} | {_verdict(change)} |")
    return [*lines, ""]


def _verdict(change: Estimate | None) -> str:
    if change is None or change.low is None or change.high is None:
        return "too few tasks"
    return "up" if change.low > 0 else "down" if change.high < 0 else "inside the noise"


def baseline(experiment: Experiment) -> tuple[int, dict[str, float]]:
    """The best k on training tasks, and F-beta of curating that many hits of the raw question, by evaluation task."""

    def f_beta(tasks: Sequence[Task], k: int) -> dict[str, float]:
        options = experiment.config.task
        return {task.id: curate_top_k(task, experiment.index, k, options).parts["f_beta"] for task in tasks}

    chosen_on = experiment.train_tasks[:CHOOSE_ON]
    choices = [k for k in CHOICES if k <= experiment.config.task.max_curated]
    k = max(choices, key=lambda k: sum(f_beta(chosen_on, k).values()))
    return k, f_beta(experiment.eval_tasks, k)
