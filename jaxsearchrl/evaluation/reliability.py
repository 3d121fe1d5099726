"""Once in k tries, and every time in k tries: what a policy can do, and what one can rely on.

Of a task with n scored tries, c of them solved, k tries drawn without replacement hold a solved one with probability

    pass@k = 1 - C(n - c, k) / C(n, k)          (Chen et al., 2021, arXiv:2107.03374)

and are all solved with probability

    pass^k = C(c, k) / C(n, k)                  (Yao et al., "τ-bench", 2024, arXiv:2406.12045)

Both are unbiased for k fresh tries. At k = 1 both are c / n.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb

from jaxsearchrl.evaluation.statistics import Estimate, by_task, mean_estimate
from jaxsearchrl.records import RolloutRecord

SOLVED = ("right", "complete")
"""Outcomes that solve a task: an exact match; a curated set that supports all facts."""


def pass_at_k(tries: int, solved: int, k: int) -> float:
    """The chance that k of the tries hold a solved one. Raises ValueError unless 1 <= k <= tries, 0 <= solved."""
    _check(tries, solved, k)
    return 1 - comb(tries - solved, k) / comb(tries, k)


def pass_hat_k(tries: int, solved: int, k: int) -> float:
    """The chance that k of the tries are all solved. Raises ValueError as `pass_at_k`."""
    _check(tries, solved, k)
    return comb(solved, k) / comb(tries, k)


@dataclass(frozen=True)
class PassRates:
    """pass@k and pass^k over tasks. Tasks with fewer than k scored tries are left out, as the estimates' counts say."""

    k: int
    at_least_once: Estimate
    every_time: Estimate


def pass_rates(records: Sequence[RolloutRecord]) -> list[PassRates]:
    """For k = 1 to the most scored tries that a task has; what the infrastructure failed is no try."""
    tries = by_task((record.task_id, float(is_solved(record))) for record in records if not record.failed)
    counts = {task: (len(values), round(sum(values))) for task, values in tries.items()}
    rates = []
    for k in range(1, max((n for n, _ in counts.values()), default=0) + 1):
        enough = {task: (n, c) for task, (n, c) in counts.items() if n >= k}
        once = mean_estimate({task: [pass_at_k(n, c, k)] for task, (n, c) in enough.items()})
        always = mean_estimate({task: [pass_hat_k(n, c, k)] for task, (n, c) in enough.items()})
        played = sum(n for n, _ in enough.values())
        rates.append(PassRates(k, replace(once, tries=played), replace(always, tries=played)))
    return rates


def is_solved(record: RolloutRecord) -> bool:
    """Whether a scored episode solved its task."""
    return record.outcome in SOLVED


def _check(tries: int, solved: int, k: int) -> None:
    if not (1 <= k <= tries and 0 <= solved <= tries):
        raise ValueError(f"k = {k} of {tries} tries, {solved} of them solved")
