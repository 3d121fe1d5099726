"""What a report says of one run or several, section by section, from run folders alone."""

import itertools
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from jaxsearchrl.config_tree import leaf_values
from jaxsearchrl.errors import UserError
from jaxsearchrl.evaluation.episode_text import episode_text
from jaxsearchrl.evaluation.evaluate import by_measure, compare
from jaxsearchrl.evaluation.failures import failure, failures
from jaxsearchrl.evaluation.headroom import headroom
from jaxsearchrl.evaluation.judgements import (
    PEOPLE,
    RULES,
    WORDS,
    Judgement,
    agreement,
    by_rule,
    judged,
    labels,
    unsolved,
)
from jaxsearchrl.evaluation.page import Chart, Line, Listing, Section, Table, finite
from jaxsearchrl.evaluation.power import noise_floor, plannable_difference, smallest_difference
from jaxsearchrl.evaluation.reliability import pass_rates
from jaxsearchrl.evaluation.retrieval import missed
from jaxsearchrl.evaluation.run_data import RunData
from jaxsearchrl.evaluation.statistics import Estimate, mean_estimate
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.telemetry.metrics import label

_ABOUT = (
    "model.path", "task.name", "task.corpus", "task.train_tasks", "task.eval_tasks", "train.seed", "train.steps",
    "train.groups_per_step", "train.group_size", "learning.loss", "learning.learning_rate", "learning.kl_weight",
    "learning.shuffle_advantages", "lora.rank", "warm_start.trajectories", "eval.tasks", "eval.tries",
)  # fmt: skip
_CURVES = (
    "reward",
    "entropy",
    "rate/empty",
    "rate/finished",
    "tokens/sampled",
    "groups/no_signal",
    "learn/logprob_gap",
)
_PACKAGES = ("jaxsearchrl", "jax", "jaxlib", "flax", "numpy", "scipy", "tantivy", "tokenizers", "transformers")
_SHOWN_CHARS = 6000


def sections(runs: Sequence[RunData], price: float | None = None) -> list[Section]:
    """All sections; those without content are empty. Runs are compared with the first.

    price: of an hour of the machine, in whatever currency.
    """
    return [
        Section("What was trained", [*_trained(runs)]),
        Section("Before and after", [block for run in runs for block in _before_and_after(run)]),
        Section("Side by side", [*_side_by_side(runs)]),
        Section("Curves", [*_curves(runs)]),
        Section("Is there anything to sharpen?", [block for run in runs for block in _headroom(run)]),
        Section("Reliability over training", [chart for run in runs for chart in _reliability(run)]),
        Section("Why tasks are not solved", [block for run in runs for block in _failures(run)]),
        Section("Alarms", [*_alarms(runs)]),
        Section("Cost and time", [*_cost(runs, price)]),
        Section("Sample rollouts", [block for run in runs for block in _samples(run)]),
        Section("Environment", [*_environment()]),
    ]


def verdict(change: Estimate | None) -> str:
    """A paired difference in words."""
    if change is None or change.few or change.low is None or change.high is None:
        return "too few tasks"
    return "up" if change.low > 0 else "down" if change.high < 0 else "inside the noise"


def _trained(runs: Sequence[RunData]) -> Iterator[str | Table]:
    values = [leaf_values(run.config) for run in runs]
    keys = [*_ABOUT, *(key for key in dict.fromkeys(key for v in values for key in v) if key not in _ABOUT)]
    differing = {key for key in keys if len({repr(v.get(key)) for v in values}) > 1}
    rows = [[key, *(_setting(v.get(key)) for v in values)] for key in keys if key in _ABOUT or key in differing]
    done = [str(max((row["step"] for row in run.rows_of("train")), default=0)) for run in runs]
    folders = [str(run.folder) for run in runs]
    yield Table(["", *(run.label for run in runs)], [["folder", *folders], ["steps done", *done], *rows])
    if len(runs) > 1:
        yield f"Settings that differ: {', '.join(key for key in keys if key in differing) or 'none'}."


def _setting(value: object) -> str:
    return "" if value is None else str(value)


def _before_and_after(run: RunData) -> Iterator[str | Table]:
    steps = sorted(run.evaluations)
    if not steps or not by_measure(run.last, run.measures[0]):
        yield f"{run.label}: no evaluation with a scored try."
        return
    yield f"{run.label}: {_what_was_evaluated(run.last)}"
    first = run.evaluations[steps[0]]
    if {record.task_id for record in run.last} != {record.task_id for record in first}:
        yield f"Step {steps[0]} was evaluated on other tasks: what the run has changed cannot be said."
        steps = steps[-1:]
    rows = []
    for name in run.measures:
        after = mean_estimate(by_measure(run.last, name))
        row = [label(name), f"{after}"]
        if len(steps) > 1:
            change = compare(run.last, first, name)
            least = change and smallest_difference(change)
            row = [
                label(name),
                _mean_or_none(first, name),
                f"{after}",
                str(change or "no task was scored in both"),
                "" if least is None else f"{least:.3f}",
                verdict(change),
            ]
        rows.append(row)
    header = ["measure", f"after step {steps[-1]}"]
    if len(steps) > 1:
        header = ["measure", f"step {steps[0]}", f"step {steps[-1]}", "change", "would show from", "verdict"]
    yield Table(header, rows)
    yield _noise(run)


def _what_was_evaluated(records: Sequence[RolloutRecord]) -> str:
    tasks = len({record.task_id for record in records})
    failed = sum(record.failed for record in records)
    lost = f"; the infrastructure failed {failed} of them, which are in no mean" if failed else ""
    return f"{tasks} evaluation tasks, {len(records)} tries in all{lost}."


def _mean_or_none(records: Sequence[RolloutRecord], name: str) -> str:
    values = by_measure(records, name)
    return str(mean_estimate(values)) if values else "nothing was scored"


def _noise(run: RunData) -> str:
    name = run.measures[0]
    values = by_measure(run.last, name)
    floor, least = noise_floor(values), plannable_difference(values)
    if floor is None:
        return "One try per task, or tries that are all alike, say nothing of the noise between two evaluations."
    found = "" if least is None else f"; an even gain must be {least:.3f} to be found four times in five"
    return (
        f"As its tries vary here, two evaluations of this one policy would differ by less than {floor:.3f} in "
        f"{label(name)} 95 % of the time{found}."
    )


def _side_by_side(runs: Sequence[RunData]) -> Iterator[str | Table]:
    if len(runs) < 2:
        return
    first = runs[0]
    rows = []
    for run in runs[1:]:
        shared = [name for name in run.measures if name in first.measures] if run.last and first.last else []
        for name in shared:
            try:
                change = compare(run.last, first.last, name)
            except UserError as error:
                yield f"{run.label} and {first.label} cannot be compared: {error}."
                break
            rows.append([run.label, label(name), str(change or "no task was scored in both"), verdict(change)])
    if rows:
        yield Table(["run", "measure", f"minus {first.label}", "verdict"], rows)


def _curves(runs: Sequence[RunData]) -> Iterator[Chart]:
    for name in dict.fromkeys(name for run in runs for name in run.measures):
        lines = [_line(run, "eval", f"score/{name}") for run in runs]
        if chart := _chart(f"{label(name)} on evaluation tasks", lines):
            yield chart
    for name in _CURVES:
        if chart := _chart(f"{name} in training", [_line(run, "train", name) for run in runs]):
            yield chart


def _line(run: RunData, kind: str, name: str) -> Line:
    points = []
    for row in run.rows_of(kind):
        if finite(row.get(name)):
            low, high = (row.get(f"{name}_{end}") for end in ("low", "high"))
            points.append((row["step"], row[name], low, high))
    return Line(run.label, points)


def _chart(title: str, lines: Sequence[Line]) -> Chart | None:
    drawn = [line for line in lines if line.points]
    return Chart(title, drawn) if drawn else None


def _headroom(run: RunData) -> Iterator[str | Table]:
    found = headroom(run.last, run.measures[0])
    if found is None:
        return
    yield f"{run.label}: {found.verdict()}"
    yield Table(
        ["", label(found.measure)],
        [
            ["mean of the tries", str(found.mean)],
            ["best of the tries", str(found.best)],
            ["gap", str(found.gap)],
            ["tasks solved in no, some, all tries", f"{found.never}, {found.sometimes}, {found.always}"],
            ["tasks whose tries earn different rewards", f"{found.varied} of {found.tasks}"],
        ],
    )
    rates = pass_rates(run.last)
    yield Table(
        ["k", "pass@k: solved at least once in k tries", "pass^k: every time"],
        [[str(rate.k), str(rate.at_least_once), str(rate.every_time)] for rate in rates],
    )


def _reliability(run: RunData) -> Iterator[Chart]:
    """Whether training made the policy broader (pass@k) or steadier (pass^k)."""
    lines: dict[str, list[tuple[float, float, float | None, float | None]]] = {}
    for step, records in run.evaluations.items():
        for rate in pass_rates(records):
            for name, found in ((f"pass@{rate.k}", rate.at_least_once), (f"pass^{rate.k}", rate.every_time)):
                lines.setdefault(name, []).append((step, found.mean, found.low, found.high))
    most = max((int(name[5:]) for name in lines), default=1)
    shown = [
        Line(name, lines[name]) for name in dict.fromkeys(("pass@1", f"pass@{most}", f"pass^{most}")) if name in lines
    ]
    if shown:
        yield Chart(f"{run.label}: tasks solved once, at least once and every time in k tries", shown)


def _failures(run: RunData) -> Iterator[str | Table]:
    counts = {step: failures(records) for step, records in run.evaluations.items()}
    if any(counts.values()):
        words = list(next(words for words in counts.values() if words))
        rows = [[word, *(str(count.get(word, "")) for count in counts.values())] for word in words]
        yield f"{run.label}, episodes by evaluated step:"
        yield Table(["", *(f"step {step}" for step in counts)], rows)
    lost = {step: missed(records, run.config.task) for step, records in run.evaluations.items()}
    if places := list(dict.fromkeys(place for count in lost.values() for place in count)):
        yield f"{run.label}, facts that were not handed over, by where they were lost:"
        yield Table(
            ["", *(f"step {step}" for step in lost)],
            [[place, *(str(count.get(place, 0)) for count in lost.values())] for place in places],
        )
    yield from judgement_tables(run)


def judgement_tables(run: RunData) -> Iterator[str | Table]:
    """What models and people say of the unsolved episodes beside the rules, and how far each two agree; if any do."""
    records = unsolved(run.evaluations)
    judges: dict[str, list[Judgement]] = {RULES: by_rule(records)}
    for found in (*judged(run.folder), *labels(run.folder, records)):
        judges.setdefault(found.model, []).append(found)
    if len(judges) < 2:
        return
    yield f"{run.label}, the same question put to others, of all evaluated steps together:"
    said = [{found.key: found.word for found in judgements} for judgements in judges.values()]
    words = dict.fromkeys((*WORDS, *(word for words in said for word in words.values())))
    counts = [[word, *(str([*words.values()].count(word)) for words in said)] for word in words]
    yield Table(["", *judges], [["episodes", *(str(len(words)) for words in said)], *counts])
    rows = []
    for one, other in itertools.combinations(judges, 2):
        if found := agreement(judges[one], judges[other], records):
            apart = "; ".join(f"{a} / {b}: {n}" for (a, b), n in found.apart[:3])
            rows.append(
                [f"{one} / {other}", str(found.share), "" if found.kappa is None else f"{found.kappa:.2f}", apart]
            )
    yield Table(["", "same word", "kappa", "most often apart"], rows)
    if PEOPLE not in judges:
        yield "Nobody has labelled episodes by hand (labels.jsonl), so how good these words are is not known."


def _alarms(runs: Sequence[RunData]) -> Iterator[str | Table]:
    rows = [
        [run.label, name, f"{first} to {last}", alarm.seen, alarm.meaning, alarm.remedy]
        for run in runs
        for name, (first, last, alarm) in run.alarms.items()
    ]
    if rows:
        yield Table(["run", "alarm", "steps", "last seen", "meaning", "what to try"], rows)
    elif any(run.rows_of("train") for run in runs):
        yield "None was raised."


def _cost(runs: Sequence[RunData], price: float | None) -> Iterator[str | Table]:
    """Seconds of each phase, as the rows of metrics.jsonl have them; older runs have not all, which stay empty."""
    phases = (("warm start",), ("rollouts",), ("update",), ("eval", "eval_greedy"))
    rows = []
    for run in runs:
        train = run.rows_of("train")
        found = [[row.get(f"seconds/{name}") for row in run.rows for name in names] for names in phases]
        seconds = [[value for value in values if value is not None] for values in found]
        if not any(map(any, seconds)):
            continue
        played = sum(int(row.get("episodes") or 0) for row in train)
        sampled = {row["step"]: (row.get("tokens/sampled") or 0.0) * (row.get("episodes") or 0.0) for row in train}
        timed = sum(sampled[row["step"]] for row in train if row.get("seconds/rollouts"))
        speed = f"{timed / sum(seconds[1]):.1f}" if any(seconds[1]) else ""
        hours = sum(map(sum, seconds)) / 3600
        row = [run.label, str(len(train)), str(played), *(f"{sum(each):.0f}" if each else "" for each in seconds)]
        row += [f"{sum(sampled.values()):.0f}", speed, f"{hours:.2f}"]
        rows.append([*row, *([] if price is None else [f"{hours * price:.2f}"])])
    if rows:
        header = ["run", "steps", "episodes", "s of warm start", "s of rollouts", "s of updates", "s of evaluations"]
        header += ["sampled tokens", "a second", "hours"]
        yield Table(header if price is None else [*header, f"cost at {price:g} an hour"], rows)
        yield "Loading, compiling ahead, checkpoints and pauses are not in it."


def _samples(run: RunData) -> Iterator[Listing]:
    scored = sorted((record for record in run.last if not record.failed), key=lambda record: record.reward or 0.0)
    if not scored:
        return
    chosen = {"worst": scored[0], "middle": scored[len(scored) // 2], "best": scored[-1]}
    for word, record in chosen.items():
        why = failure(record) if failures([record]) else None
        title = f"{run.label}, {word}: task {record.task_id}, reward {record.reward:.3f}, {record.outcome}"
        yield Listing(f"{title} ({why})" if why else title, episode_text(record, _SHOWN_CHARS))


def _environment() -> Iterator[str | Table]:
    yield "Of the machine that wrote this report."
    rows = [["python", platform.python_version()], ["platform", platform.platform()]]
    for package in _PACKAGES:
        try:
            rows.append([package, version(package)])
        except PackageNotFoundError:
            rows.append([package, "not installed"])
    yield Table(["", "version"], rows)
