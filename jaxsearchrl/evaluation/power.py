"""What an evaluation can show at all: how far chance alone moves it, and the smallest difference it would find.

With n tasks, k_i scored tries of task i and s_i² their variance (over k_i - 1), two evaluations of one policy on the
same tasks differ by a number of mean 0 and variance

    v = 2 / n² · Σ s_i² / k_i

since the tasks' own difficulty is in both. The noise floor is 1.96 sqrt(v): 95 % of such differences lie within it.

A paired test at level 5 % finds a true difference of (t(n - 1, 0.975) + t(n - 1, 0.8)) · e four times in five (Bloom,
"Minimum detectable effects", 1995), with e the standard error of the difference.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import ndtri, stdtrit

from jaxsearchrl.evaluation.statistics import LEVEL, Estimate

POWER = 0.8


def noise_floor(values: Mapping[str, Sequence[float]]) -> float | None:
    """What 95 % of the differences between two evaluations of one policy stay below. values: the tries of each task.

    None unless each task has two tries or more and some of them differ: else nothing is known of how much tries vary.
    """
    error = _chance_error(values)
    return None if error is None else float(ndtri((1 + LEVEL) / 2)) * error


def smallest_difference(change: Estimate) -> float | None:
    """The true difference that a paired comparison as sharp as `change` finds with power 80 %.

    None for one task, and where all tasks differ by the same: that says nothing of how sharp it is.
    """
    if change.low is None or change.high is None or change.low == change.high:
        return None
    error = (change.high - change.low) / 2 / float(stdtrit(change.tasks - 1, (1 + LEVEL) / 2))
    return _detectable(error, change.tasks)


def plannable_difference(values: Mapping[str, Sequence[float]]) -> float | None:
    """The same before there is anything to compare with, from the tries of one evaluation.

    It holds for a policy that is better by the same on every task; one that gains here and loses there needs more.
    None where the noise floor is None, and for one task.
    """
    error = _chance_error(values)
    return None if error is None or len(values) < 2 else _detectable(error, len(values))


def _chance_error(values: Mapping[str, Sequence[float]]) -> float | None:
    if not values or min(map(len, values.values())) < 2:
        return None
    variance = sum(float(np.var(tries, ddof=1)) / len(tries) for tries in values.values())
    return math.sqrt(2 * variance) / len(values) or None


def _detectable(error: float, tasks: int) -> float:
    return float(stdtrit(tasks - 1, (1 + LEVEL) / 2) + stdtrit(tasks - 1, POWER)) * error
