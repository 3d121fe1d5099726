"""What a run has shown: report.md in short, with where everything lies, and report.html with everything.

`python -m jaxsearchrl.evaluation report` makes the second of any run folders, side by side.
"""

from collections.abc import Sequence
from pathlib import Path

from jaxsearchrl.config_checks import total_steps
from jaxsearchrl.evaluation.evaluate import by_measure, compare
from jaxsearchrl.evaluation.page import Section, as_html
from jaxsearchrl.evaluation.run_data import read_run
from jaxsearchrl.evaluation.sections import sections, verdict
from jaxsearchrl.evaluation.statistics import mean_estimate, paired_difference
from jaxsearchrl.experiment import Experiment
from jaxsearchrl.records import RolloutRecord, read_records
from jaxsearchrl.run_folder import write_atomically
from jaxsearchrl.telemetry.metrics import label
from jaxsearchrl.telemetry.metrics_file import read_metrics


def write_report(workdir: Path, experiment: Experiment, step: int) -> str:
    """Writes report.md and report.html; returns the first's text."""
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
        f"* train longer: the same command with a larger `--config.{_limit(experiment)}` goes on from here",
        "* use your own documents and questions: `docs/your_own_task.md`",
        "",
    ]
    text = "\n".join(lines)
    (workdir / "report.md").write_text(text, encoding="utf-8")
    run = read_run(workdir, experiment.config.name)
    short = Section("In short", [line for line in lines[2:] if line and line[0] not in "|#*"])
    page = as_html(lines[0].removeprefix("# "), [short, *sections([run])])
    write_atomically(workdir / "report.html", page.encode("utf-8", "replace"))
    return text


def _limit(experiment: Experiment) -> str:
    """The setting that ended the run."""
    train = experiment.config.train
    return "train.steps" if total_steps(train, len(experiment.train_tasks)) == train.steps else "train.epochs"


def _evaluations(workdir: Path, experiment: Experiment, first: int, last: int) -> list[str]:
    after = read_records(workdir, "eval", last)
    lines = [f"Evaluation tasks: {len(experiment.eval_tasks)}, {experiment.config.eval.tries} sampled tries each.", ""]
    measures = experiment.family.measures
    if first < last:
        lines += _changes(read_records(workdir, "eval", first), after, measures[:4])
    reached = by_measure(after, measures[0])
    if not reached:
        return [*lines, f"After step {last} no try was scored: the infrastructure failed them all.", ""]
    lines.append(f"{label(measures[0])} after step {last}: {mean_estimate(reached)}.")
    baseline = experiment.family.baseline(experiment.train_tasks, experiment.eval_tasks)
    if baseline:
        theirs = {task: [value] for task, value in baseline.values.items() if task in reached}
        lines.append(
            f"{baseline.words}: {mean_estimate(theirs)}; "
            f"the policy minus this baseline: {paired_difference(reached, theirs)}."
        )
    return [*lines, ""]


def _changes(before: Sequence[RolloutRecord], after: Sequence[RolloutRecord], names: Sequence[str]) -> list[str]:
    lines = ["| measure | change | verdict |", "|---|---|---|"]
    for name in names:
        change = compare(after, before, name)
        lines.append(f"| {name} | {change or 'no task was scored in both'} | {verdict(change)} |")
    return [*lines, ""]
