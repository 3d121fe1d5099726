"""Intervals: hand-worked, and covering what they claim."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.errors import UserError
from jaxsearchrl.evaluation.statistics import by_task, interval, mean_estimate, paired_difference


def test_the_interval_of_three_tasks_by_hand():
    # Task means 0, 0.5 and 1: mean 0.5, deviation 0.5, t(2) = 4.302653, half width 4.302653 · 0.5 / sqrt(3) = 1.242069.
    estimate = mean_estimate({"a": [0.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]})
    assert estimate.mean == 0.5
    assert (estimate.low, estimate.high) == (pytest.approx(0.5 - 1.242069), pytest.approx(0.5 + 1.242069))
    assert (estimate.tasks, estimate.tries) == (3, 6)
    assert str(estimate) == "0.500 (95 % [-0.742, 1.742], too few tasks: 3, 6 tries)"
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
    assert str(estimate) == "0.500 (no interval from one task, too few tasks: 1, 2 tries)"
    assert estimate.metrics("f1") == {"f1": 0.5}


def test_five_items_count_as_five():
    estimate = mean_estimate(by_task((f"task {n}", float(n)) for n in range(5)))
    assert (estimate.tasks, estimate.mean) == (5, 2.0)


def test_so_few_tasks_that_even_all_of_them_alike_may_be_chance_are_called_too_few():
    five, six = (mean_estimate({f"task {n}": [1.0] for n in range(count)}) for count in (5, 6))
    assert str(five) == "1.000 (95 % [1.000, 1.000], too few tasks: 5, 5 tries)"
    assert str(six) == "1.000 (95 % [1.000, 1.000], 6 tasks, 6 tries)"


def test_what_cannot_be_averaged_is_refused():
    for values in ({}, {"a": []}, {"a": [0.1, float("nan")]}):
        with pytest.raises(ValueError):
            mean_estimate(values)


def test_the_interval_of_a_skewed_sample_by_hand():
    # Task means 0, 0, 0, 1: mean 0.25, deviation 0.5, skewness 0.09375 / 0.1875^1.5 = 1.154701, t(3) = 3.182446.
    # Half width 3.182446 · 0.5 / 2 = 0.795612; shift 1.154701 · 0.5 · (1 + 2 · 10.127965) / 24 = 0.511338.
    estimate = mean_estimate({"a": [0.0], "b": [0.0], "c": [0.0], "d": [1.0]})
    assert estimate.mean == 0.25
    assert (estimate.low, estimate.high) == pytest.approx(
        (0.25 + 0.511338 - 0.795612, 0.25 + 0.511338 + 0.795612), abs=1e-5
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-0.2, 0.0, 0.0, 0.5, 1.0]), min_size=2, max_size=40))
def test_the_interval_holds_the_mean_and_turns_over_with_the_sample(means):
    estimate = mean_estimate({str(i): [value] for i, value in enumerate(means)})
    turned = mean_estimate({str(i): [-value] for i, value in enumerate(means)})
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low - 1e-9 <= estimate.mean <= estimate.high + 1e-9
    assert (turned.low, turned.high) == (pytest.approx(-estimate.high), pytest.approx(-estimate.low))


SIMULATIONS = 5000


def solved(rng, tasks, share_never, a, b, levels):
    """[simulations, tasks, 4] scores in 0..1 and their mean: some tasks never, others by a rate of Beta(a, b).

    levels: how many steps a score has; 1 for right or wrong.
    """
    rate = rng.beta(a, b, (SIMULATIONS, tasks, 1)) * (rng.random((SIMULATIONS, tasks, 1)) >= share_never)
    scores = rng.binomial(levels, np.broadcast_to(rate, (SIMULATIONS, tasks, 4))) / levels
    return scores, (1 - share_never) * a / (a + b)


POPULATIONS = {
    "graded, skewed": (0.0, 0.9, 2.1, 4),
    "graded, 40 % never": (0.4, 1.5, 1.5, 4),
    "graded, 60 % never": (0.6, 1.5, 1.5, 4),
    "right or wrong": (0.0, 0.5, 1.5, 1),
    "right or wrong, 60 % never, one in ten": (0.6, 1.0, 3.0, 1),
    "right or wrong, 70 % never": (0.7, 2.0, 2.0, 1),
    "right or wrong, mostly right": (0.0, 2.5, 1.0, 1),
}


@pytest.mark.parametrize("tasks", [32, 64])
@pytest.mark.parametrize("population", POPULATIONS.values(), ids=list(POPULATIONS))
def test_the_interval_covers_the_truth_as_often_as_it_says(population, tasks):
    scores, truth = solved(np.random.default_rng(0), tasks, *population)
    low, high = interval(scores.mean(-1), skewed=True)
    assert 0.935 <= np.mean((low <= truth) & (truth <= high)) <= 0.965


def test_neither_tries_as_independent_nor_plain_student_would_cover():
    scores, truth = solved(np.random.default_rng(0), 32, *POPULATIONS["right or wrong, 60 % never, one in ten"])
    low, high = interval(scores.mean(-1), skewed=False)
    assert np.mean((low <= truth) & (truth <= high)) < 0.92
    alone = scores.reshape(SIMULATIONS, -1)
    half = 1.96 * alone.std(-1, ddof=1) / np.sqrt(alone.shape[-1])
    assert np.mean(np.abs(alone.mean(-1) - truth) <= half) < 0.85


def two_evaluations(rng, tasks, share_never, a, b, levels, *, same):
    """[simulations, tasks] differences of two evaluations of four tries, of one policy or of two equal ones."""
    shape = (SIMULATIONS, tasks, 1)
    never = rng.random(shape) < share_never
    rate = rng.beta(a, b, shape)
    other = rate if same else rng.beta(a, b, shape)
    first, second = (
        rng.binomial(levels, np.broadcast_to(r * ~never, (SIMULATIONS, tasks, 4))) / levels for r in (rate, other)
    )
    return second.mean(-1) - first.mean(-1)


def test_a_paired_difference_of_nothing_is_seldom_called_one():
    """Of all cases together within two simulation errors of 5 %, of each alone within three."""
    cases = [(p, tasks, same) for p in POPULATIONS.values() for tasks in (32, 64) for same in (True, False)]
    false = []
    for seed, (population, tasks, same) in enumerate(cases):
        changes = two_evaluations(np.random.default_rng(seed), tasks, *population, same=same)
        low, high = interval(changes, skewed=False)
        false.append(np.mean((low > 0) | (high < 0)))
    error = np.sqrt(0.05 * 0.95 / SIMULATIONS)
    assert np.mean(false) <= 0.05 + 2 * error / np.sqrt(len(cases))
    assert max(false) <= 0.05 + 3 * error


def test_a_paired_difference_by_hand_ignores_the_tasks_own_difficulty():
    before = {"a": [0.1], "b": [0.5], "c": [0.9]}
    after = {"c": [1.0], "a": [0.2], "b": [0.6]}
    difference = paired_difference(after, before)
    assert (difference.mean, difference.tasks, difference.tries) == (pytest.approx(0.1), 3, 6)
    assert difference.low == pytest.approx(0.1)
    # Differences 0, 0.1, 0.2: deviation 0.1, half width 4.302653 · 0.1 / sqrt(3) = 0.248414.
    spread = paired_difference({"a": [0.1], "b": [0.6], "c": [1.1]}, before)
    assert spread.low == pytest.approx(0.1 - 0.248414, abs=1e-6)


def test_different_task_lists_are_refused():
    with pytest.raises(UserError, match=r"1 tasks are in one of the two evaluations only .*'b'"):
        paired_difference({"a": [1.0], "b": [1.0]}, {"a": [1.0]})
    with pytest.raises(UserError, match=r"1 tasks are in one of the two evaluations only .*'b'"):
        paired_difference({"a": [1.0]}, {"a": [1.0], "b": [1.0]})
