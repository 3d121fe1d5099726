"""What an evaluation says: means over fixed tasks with intervals clustered by task, and how two evaluations differ."""

from collections.abc import Sequence

from jaxsearchrl.evaluation.statistics import Estimate, by_task, mean_estimate, paired_difference
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.telemetry.metrics import rollout_metrics

# Means of these have an interval.
MEASURES = ("reward", "f_beta", "f1", "precision", "recall", "candidate_recall")


def summarise(records: Sequence[RolloutRecord], tries: int) -> dict[str, float]:
    """Metrics of one evaluation. Failures of the infrastructure are counted and enter no mean."""
    metrics = rollout_metrics(records, tries)
    scored = [record for record in records if not record.failed]
    if not scored:
        return metrics
    for name in MEASURES:
        metrics |= mean_estimate(_values(scored, name)).metrics(name if name == "reward" else f"score/{name}")
    best = {task: [max(values)] for task, values in _values(scored, "f_beta").items()}
    metrics["best_of_n/f_beta"] = mean_estimate(best).mean
    return metrics


def measure(record: RolloutRecord, name: str) -> float:
    """The reward or a part of the score of a scored record."""
    value = record.reward if name == "reward" else record.score_parts[name]
    assert value is not None, "a failed record has no measures"
    return value


def compare(after: Sequence[RolloutRecord], before: Sequence[RolloutRecord], name: str) -> Estimate:
    """The paired difference of a measure between two evaluations of the same tasks; failed records count in neither.

    Raises UserError when the tasks differ.
    """
    return paired_difference(_values(after, name), _values(before, name))


def _values(records: Sequence[RolloutRecord], name: str) -> dict[str, list[float]]:
    return by_task((record.task_id, measure(record, name)) for record in records if not record.failed)
