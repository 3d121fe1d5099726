"""How sure a mean is. Tries of one question are alike, so the question is the unit: intervals are clustered by task.

Each task counts by the mean over its tries; the interval is Student's t over the task means,

    m ± t(n - 1, 0.975) · s / sqrt(n),        s² = Σ (m_i - m)² / (n - 1),

for n tasks. With clusters of one size this is the cluster-robust interval (Miller, "Adding error bars to evals", 2024),
and it needs no random numbers. Two evaluations of the same tasks are compared by their difference task by task, where
the tasks' own difficulty drops out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from jaxsearchrl.errors import UserError

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over `tasks` tasks and `tries` tries; low and high are None for a single task."""

    mean: float
    low: float | None
    high: float | None
    tasks: int
    tries: int

    def __str__(self) -> str:
        interval = "no interval from one task" if self.low is None else f"95 % [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.mean:.3f} ({interval}, {self.tasks} tasks, {self.tries} tries)"

    def metrics(self, name: str) -> dict[str, float]:
        """As rows of metrics.jsonl hold it: name, name_low, name_high (absent for one task)."""
        bounds = {f"{name}_low": self.low, f"{name}_high": self.high}
        return {name: self.mean, **{key: bound for key, bound in bounds.items() if bound is not None}}


def by_task(pairs: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """(task id, value) pairs, one per try, gathered by task."""
    values: dict[str, list[float]] = {}
    for task, value in pairs:
        values.setdefault(task, []).append(value)
    return values


def mean_estimate(values: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over tasks of the mean over tries. values: the tries of each task id.

    Raises ValueError without tasks, for a task without tries, or for a value that is not finite.
    """
    if not values:
        raise ValueError("no tasks to average over")
    for task, tries in values.items():
        if not len(tries) or not all(map(math.isfinite, tries)):
            raise ValueError(f"task {task!r} has no values, or one that is not finite: {list(tries)}")
    return _estimate([float(np.mean(tries)) for tries in values.values()], sum(map(len, values.values())))


def paired_difference(after: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over tasks of (after - before). Raises UserError unless both have exactly the same tasks."""
    check_same_tasks(after.keys(), before.keys())
    tries = mean_estimate(after).tries + mean_estimate(before).tries
    return _estimate([float(np.mean(after[task]) - np.mean(before[task])) for task in after], tries)


def check_same_tasks(after: Set[str], before: Set[str]) -> None:
    """Raises UserError when a task is in one of two evaluations only."""
    if odd := sorted(after ^ before):
        raise UserError(
            f"{len(odd)} tasks are in one of the two evaluations only (such as {odd[0]!r}): their difference would mix "
            "questions with policies; evaluate both on one list"
        )


def _estimate(task_means: Sequence[float], tries: int) -> Estimate:
    tasks = len(task_means)
    mean = float(np.mean(task_means))
    if tasks == 1:
        return Estimate(mean, None, None, tasks, tries)
    half = float(stdtrit(tasks - 1, (1 + LEVEL) / 2) * np.std(task_means, ddof=1) / math.sqrt(tasks))
    return Estimate(mean, mean - half, mean + half, tasks, tries)
