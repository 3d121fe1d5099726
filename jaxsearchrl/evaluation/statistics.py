"""How sure a mean is. Tries of one question are alike, so the question is the unit: intervals are clustered by task.

Each task counts by the mean over its tries. With n task means of mean m, deviation s and skewness g,

    m + c ± t(n - 1, 0.975) · s / sqrt(n),        s² = Σ (m_i - m)² / (n - 1),
    c = g · s · (1 + 2 t²) / (6 n),               g = Σ (m_i - m)³ / n / (Σ (m_i - m)² / n)^1.5

c is the first correction for skewness (Johnson, "Modified t tests", 1978). Scores are bounded and skewed, many tasks
are never solved, and without c the interval of 32 such tasks covers the truth as seldom as 91 % of the time.

Two evaluations of the same tasks are compared by their difference task by task, where the tasks' own difficulty drops
out (Miller, "Adding error bars to evals", 2024). Under one policy such differences are symmetric, and their interval
has no c: estimated from few that are not 0, it would raise false positives above 5 %. No random numbers are needed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from jaxsearchrl.errors import UserError

LEVEL = 0.95
FEW_TASKS = 6
"""Fewer show nothing: even if all of them move the same way, a sign test has 2 · 2^-n > 5 %."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over `tasks` tasks and `tries` tries; low and high are None for a single task."""

    mean: float
    low: float | None
    high: float | None
    tasks: int
    tries: int

    @property
    def few(self) -> bool:
        """Whether there are too few tasks for its interval to be believed."""
        return self.tasks < FEW_TASKS

    @property
    def interval(self) -> str:
        """In words."""
        return "no interval from one task" if self.low is None else f"95 % [{self.low:.3f}, {self.high:.3f}]"

    def __str__(self) -> str:
        tasks = f"too few tasks: {self.tasks}" if self.few else f"{self.tasks} tasks"
        return f"{self.mean:.3f} ({self.interval}, {tasks}, {self.tries} tries)"

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
    means = [float(np.mean(tries)) for tries in values.values()]
    return _estimate(means, sum(map(len, values.values())), skewed=True)


def paired_difference(after: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over tasks of (after - before). Raises UserError unless both have exactly the same tasks."""
    check_same_tasks(after.keys(), before.keys())
    tries = mean_estimate(after).tries + mean_estimate(before).tries
    return _estimate([float(np.mean(after[task]) - np.mean(before[task])) for task in after], tries, skewed=False)


def check_same_tasks(after: Set[str], before: Set[str]) -> None:
    """Raises UserError when a task is in one of two evaluations only."""
    if odd := sorted(after ^ before):
        raise UserError(
            f"{len(odd)} tasks are in one of the two evaluations only (such as {odd[0]!r}): their difference would mix "
            "questions with policies; evaluate both on one list"
        )


def interval(task_means: np.ndarray, *, skewed: bool) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of the mean of [..., n] task means, n > 1; skewed: with the correction for skewness."""
    n = task_means.shape[-1]
    apart = task_means - task_means.mean(-1, keepdims=True)
    deviation = task_means.std(-1, ddof=1)
    t = stdtrit(n - 1, (1 + LEVEL) / 2)
    centre, half = task_means.mean(-1), t * deviation / math.sqrt(n)
    if skewed:
        spread = np.sqrt((apart**2).mean(-1))
        skewness = (apart**3).mean(-1) / np.where(spread > 0, spread, 1.0) ** 3
        centre = centre + skewness * deviation * (1 + 2 * t**2) / (6 * n)
    return centre - half, centre + half


def _estimate(task_means: Sequence[float], tries: int, *, skewed: bool) -> Estimate:
    tasks, means = len(task_means), np.array(task_means, np.float64)
    if tasks == 1:
        return Estimate(float(means[0]), None, None, tasks, tries)
    low, high = interval(means, skewed=skewed)
    return Estimate(float(means.mean()), float(low), float(high), tasks, tries)
