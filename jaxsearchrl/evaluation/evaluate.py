"""What an evaluation says: means over fixed tasks with intervals clustered by task, and how two evaluations differ."""

import math
from collections.abc import Mapping, Sequence

from jaxsearchrl.errors import UserError
from jaxsearchrl.evaluation.statistics import Estimate, by_task, check_same_tasks, mean_estimate, paired_difference
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.telemetry.metrics import label, rollout_metrics


def summarise(records: Sequence[RolloutRecord], tries: int, measures: Sequence[str]) -> dict[str, float]:
    """Metrics of one evaluation. Failures of the infrastructure are counted and enter no mean.

    measures: parts of the score. Of them and of the reward come means with intervals; where tasks have sources, also
    means by source and the mean over sources (macro/*); of the first, the best of the tries.
    """
    metrics = rollout_metrics(records, tries)
    scored = [record for record in records if not record.failed]
    if not scored:
        return metrics
    for name in ("reward", *measures):
        metrics |= mean_estimate(by_measure(scored, name)).metrics(name if name == "reward" else f"score/{name}")
    best = {task: [max(values)] for task, values in by_measure(scored, measures[0]).items()}
    metrics[f"best_of_n/{measures[0]}"] = mean_estimate(best).mean
    return metrics | _by_source(scored, measures)


def refuse_failures(records: Sequence[RolloutRecord], most: float, what: str) -> None:
    """Raises UserError where the infrastructure failed a larger share of the episodes than `most`."""
    failed = sum(record.failed for record in records) / max(len(records), 1)
    if failed > most:
        errors = sorted({error for record in records for error in record.infrastructure_errors})[:3]
        raise UserError(
            f"{what}: the infrastructure failed {failed:.0%} of the episodes, more than "
            f"train.max_infrastructure_share allows; {'; '.join(errors)}"
        )


def values_in_words(metrics: Mapping[str, float], measures: Sequence[str]) -> str:
    """The first three measures, for a note."""
    return "  ".join(f"{label(name)} {metrics.get(f'score/{name}', float('nan')):.3f}" for name in measures[:3])


def _by_source(scored: Sequence[RolloutRecord], measures: Sequence[str]) -> dict[str, float]:
    sources = sorted({record.source for record in scored} - {""})
    metrics: dict[str, float] = {}
    for name in measures if sources else ():
        means = {
            source: mean_estimate(by_measure([r for r in scored if r.source == source], name)).mean
            for source in sources
        }
        metrics |= {f"source/{source}/{name}": mean for source, mean in means.items()}
        metrics[f"macro/{name}"] = math.fsum(means.values()) / len(means)
    return metrics


def measure(record: RolloutRecord, name: str) -> float:
    """The reward or a part of the score of a scored record."""
    value = record.reward if name == "reward" else record.score_parts[name]
    assert value is not None, "a failed record has no measures"
    return value


def compare(after: Sequence[RolloutRecord], before: Sequence[RolloutRecord], name: str) -> Estimate | None:
    """The paired difference of a measure between two evaluations of the same tasks.

    Over the tasks with a scored try in both (the estimate says how many); None without one. Raises UserError when the
    evaluations had other tasks.
    """
    check_same_tasks({record.task_id for record in after}, {record.task_id for record in before})
    values, values_before = by_measure(after, name), by_measure(before, name)
    both = [task for task in values if task in values_before]
    if not both:
        return None
    return paired_difference({task: values[task] for task in both}, {task: values_before[task] for task in both})


def by_measure(records: Sequence[RolloutRecord], name: str) -> dict[str, list[float]]:
    """A measure of the scored tries of each task."""
    return by_task((record.task_id, measure(record, name)) for record in records if not record.failed)
