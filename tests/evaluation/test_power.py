"""The noise floor and the smallest difference, by hand and in simulation."""

import numpy as np
import pytest

from jaxsearchrl.evaluation.power import noise_floor, plannable_difference, smallest_difference
from jaxsearchrl.evaluation.statistics import Estimate, interval, paired_difference

SIMULATIONS, TASKS, TRIES = 5000, 32, 4


def test_the_noise_floor_by_hand():
    # Variances over the tries 0.5 and 0: v = 2 / 4 · 0.5 / 2 = 0.125; 1.959964 · sqrt(0.125) = 0.692952.
    assert noise_floor({"a": [0.0, 1.0], "b": [1.0, 1.0]}) == pytest.approx(0.692952, abs=1e-6)


def test_one_try_says_nothing_of_the_noise():
    assert noise_floor({"a": [0.0, 1.0], "b": [1.0]}) is None
    assert noise_floor({}) is None
    assert noise_floor({"a": [1.0, 1.0], "b": [0.0, 0.0]}) is None  # nor do tries that are all alike
    assert plannable_difference({"a": [1.0]}) is None
    assert plannable_difference({"a": [0.0, 1.0]}) is None  # one task has no spread over tasks


def test_the_smallest_difference_by_hand():
    # Differences 0, 0.1, 0.2: standard error 0.1 / sqrt(3) = 0.057735; t(2): 4.302653 and 1.060660.
    change = paired_difference({"a": [0.1], "b": [0.6], "c": [1.1]}, {"a": [0.1], "b": [0.5], "c": [0.9]})
    assert smallest_difference(change) == pytest.approx((4.302653 + 1.060660) * 0.057735, abs=1e-5)
    assert smallest_difference(Estimate(0.1, 0.1, 0.1, 3, 6)) is None
    assert smallest_difference(Estimate(0.1, None, None, 1, 2)) is None


def rates(rng):
    """[simulations, tasks, 1] of which two in five are never solved."""
    return rng.beta(1.5, 1.5, (SIMULATIONS, TASKS, 1)) * (rng.random((SIMULATIONS, TASKS, 1)) > 0.4)


def scores(rng, rate):
    return rng.binomial(4, np.broadcast_to(rate, (SIMULATIONS, TASKS, TRIES))) / 4


def test_two_evaluations_of_one_policy_differ_by_less_than_the_floor_nineteen_times_in_twenty():
    rng = np.random.default_rng(2)
    rate = rates(rng)
    first, second = scores(rng, rate), scores(rng, rate)
    change = np.abs(second.mean((1, 2)) - first.mean((1, 2)))
    floors = [noise_floor(dict(enumerate(tries))) for tries in first[:500]]  # type: ignore[arg-type]
    assert 0.93 <= np.mean(change[:500] <= np.array(floors, float)) <= 0.97
    assert float(np.mean(floors)) == pytest.approx(np.quantile(change, 0.95), rel=0.05)  # type: ignore[arg-type]


@pytest.mark.parametrize("uneven", [0.0, 0.15])
def test_an_effect_of_the_stated_size_is_found_four_times_in_five(uneven):
    """Also when the policy gains much on some tasks and loses on others."""
    rng = np.random.default_rng(3)
    rate = rates(rng)
    change = scores(rng, rate).mean(-1) - scores(rng, rate).mean(-1) + rng.normal(0, uneven, (SIMULATIONS, TASKS))
    effect = float(np.mean([_smallest(row) for row in change[:300]]))
    low, _ = interval(change + effect, skewed=False)
    assert 0.77 <= np.mean(low > 0) <= 0.83


def test_what_can_be_planned_from_one_evaluation_is_what_an_even_gain_needs():
    rng = np.random.default_rng(4)
    rate = rates(rng)
    first, second = scores(rng, rate), scores(rng, rate)
    planned = [plannable_difference(dict(enumerate(tries))) for tries in first[:300]]  # type: ignore[arg-type]
    needed = [_smallest(row) for row in (second - first).mean(-1)[:300]]
    assert np.mean(planned) == pytest.approx(np.mean(needed), rel=0.03)  # type: ignore[arg-type]


def _smallest(changes: np.ndarray) -> float:
    low, high = interval(changes, skewed=False)
    size = smallest_difference(Estimate(float(changes.mean()), float(low), float(high), TASKS, TASKS * TRIES))
    assert size is not None
    return size
