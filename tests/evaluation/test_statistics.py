"""Intervals: hand-worked, and covering what they claim."""

import numpy as np
import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.evaluation.statistics import by_task, mean_estimate, paired_difference


def test_the_interval_of_three_tasks_by_hand():
    # Task means 0, 0.5 and 1: mean 0.5, deviation 0.5, t(2) = 4.302653, half width 4.302653 · 0.5 / sqrt(3) = 1.242069.
    estimate = mean_estimate({"a": [0.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]})
    assert estimate.mean == 0.5
    assert (estimate.low, estimate.high) == (pytest.approx(0.5 - 1.242069), pytest.approx(0.5 + 1.242069))
    assert (estimate.tasks, estimate.tries) == (3, 6)
    assert str(estimate) == "0.500 (95 % [-0.742, 1.742], 3 tasks, 6 tries)"
    assert estimate.metrics("f1") == {"f1": 0.5, "f1_low": estimate.low, "f1_high": estimate.high}


def test_more_tries_of_the_same_tasks_do_not_narrow_the_interval():
    few = mean_estimate({"a": [0.2], "b": [0.6]})
    many = mean_estimate({"a": [0.2] * 50, "b": [0.6] * 50})
    assert (many.mean, many.low, many.high) == pytest.approx((few.mean, few.low, few.high))


def test_each_task_counts_once_however_many_tries_it_has():
    assert mean_estimate({"a": [1.0], "b": [0.0] * 3}).mean == 0.5


def test_one_task_has_a_mean_and_no_interval():
    estimate = mean_estimate({"a": [0.25, 0.75]})
    assert (estimate.mean, estimate.low, estimate.high) == (0.5, None, None)
    assert str(estimate) == "0.500 (no interval from one task, 1 tasks, 2 tries)"
    assert estimate.metrics("f1") == {"f1": 0.5}


def test_five_items_count_as_five():
    estimate = mean_estimate(by_task((f"task {n}", float(n)) for n in range(5)))
    assert (estimate.tasks, estimate.mean) == (5, 2.0)


def test_what_cannot_be_averaged_is_refused():
    for values in ({}, {"a": []}, {"a": [0.1, float("nan")]}):
        with pytest.raises(ValueError):
            mean_estimate(values)


def simulate(rng: np.random.Generator, tasks: int, tries: int) -> np.ndarray:
    """[tasks, tries] rewards in [0, 1], skewed, alike within a task; their true mean is 0.3."""
    difficulty = rng.beta(0.9, 2.1, size=tasks)
    return rng.binomial(4, difficulty[:, None], size=(tasks, tries)) / 4


def test_the_interval_covers_the_truth_as_often_as_it_says_and_one_over_tries_does_not():
    rng = np.random.default_rng(0)
    runs, covered, naive = 2000, 0, 0
    for _ in range(runs):
        rewards = simulate(rng, tasks=32, tries=4)
        estimate = mean_estimate(dict(enumerate(rewards)))  # type: ignore[arg-type]
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= 0.3 <= estimate.high
        naive += abs(rewards.mean() - 0.3) <= 1.96 * rewards.std(ddof=1) / np.sqrt(rewards.size)
    assert 0.93 < covered / runs < 0.97
    assert naive / runs < 0.85


def test_a_paired_difference_by_hand_ignores_the_tasks_own_difficulty():
    before = {"a": [0.1], "b": [0.5], "c": [0.9]}
    after = {"c": [1.0], "a": [0.2], "b": [0.6]}
    difference = paired_difference(after, before)
    assert (difference.mean, difference.tasks, difference.tries) == (pytest.approx(0.1), 3, 6)
    assert difference.low == pytest.approx(0.1)
    # Differences 0, 0.1, 0.2: deviation 0.1, half width 4.302653 · 0.1 / sqrt(3) = 0.248414.
    spread = paired_difference({"a": [0.1], "b": [0.6], "c": [1.1]}, before)
    assert spread.low == pytest.approx(0.1 - 0.248414, abs=1e-6)


def test_paired_differences_cover_too():
    rng, runs, covered = np.random.default_rng(1), 1000, 0
    for _ in range(runs):
        before = simulate(rng, 24, 2)
        after = before + rng.normal(0.05, 0.2, size=before.shape)
        difference = paired_difference(dict(enumerate(after)), dict(enumerate(before)))  # type: ignore[arg-type]
        assert difference.low is not None
        assert difference.high is not None
        covered += difference.low <= 0.05 <= difference.high
    assert 0.93 < covered / runs < 0.97


def test_different_task_lists_are_refused():
    with pytest.raises(UserError, match=r"1 tasks are in one of the two evaluations only .*'b'"):
        paired_difference({"a": [1.0], "b": [1.0]}, {"a": [1.0]})
    with pytest.raises(UserError, match=r"1 tasks are in one of the two evaluations only .*'b'"):
        paired_difference({"a": [1.0]}, {"a": [1.0], "b": [1.0]})
