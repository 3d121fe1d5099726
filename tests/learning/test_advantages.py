import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.errors import UserError
from jaxsearchrl.learning.advantages import group_advantages, shuffled, without_signal


def test_the_group_mean_is_removed_and_nothing_divided():
    result = group_advantages([1, 0, 0, -0.1, 1, 0, 0, -0.1], ["q"] * 8, [True] * 8)
    np.testing.assert_allclose(
        result.advantages, [0.775, -0.225, -0.225, -0.325, 0.775, -0.225, -0.225, -0.325], atol=1e-7
    )
    assert result.advantages.dtype == np.float32
    assert result.count == 8


def test_grpo_divides_by_the_groups_deviation():
    result = group_advantages([1, 0, 0, 1, 2, 2, 0.5, 0.1], list("aaaabbcc"), [True] * 8, divide_by_deviation=True)
    np.testing.assert_allclose(result.advantages, [1, -1, -1, 1, 0, 0, 1, -1], atol=1e-5)


def test_groups_follow_their_keys_and_not_their_places():
    # Interleaved: a = [1, 0], b = [0.5, 0.1].
    result = group_advantages([1, 0.5, 0, 0.1], ["a", "b", "a", "b"], [True] * 4)
    np.testing.assert_allclose(result.advantages, [0.5, 0.2, -0.5, -0.2], atol=1e-7)


def test_groups_of_equal_rewards_have_no_signal_whatever_the_batch_mean_is():
    result = group_advantages([1, 1, 1, 1, 0, 0, 0, 0], ["a"] * 4 + ["b"] * 4, [True] * 8)
    assert not result.advantages.any()
    assert result.count == 8


def test_rewards_that_differ_by_rounding_have_no_signal():
    # The mean of three 0.1 is not 0.1 in binary, and 0.1 + 0.2 is not 0.3.
    result = group_advantages([0.1, 0.1, 0.1, 0.1 + 0.2, 0.3], ["a"] * 3 + ["b"] * 2, [True] * 5)
    assert not result.advantages.any()
    assert without_signal([0.1 + 0.2, 0.3])
    assert not without_signal([0.3, 0.3001])


def test_infrastructure_failures_leave_the_mean_and_the_count():
    result = group_advantages([1.0, 0.0, float("nan"), -5.0], ["q"] * 4, [True, True, False, False])
    np.testing.assert_array_equal(result.advantages, np.array([0.5, -0.5, 0, 0], np.float32))
    assert result.count == 2


def test_a_lone_valid_trajectory_has_advantage_zero():
    result = group_advantages([0.8, 0.1, 0.3, 0.9], ["a", "a", "b", "b"], [True, False, True, True])
    np.testing.assert_allclose(result.advantages, [0, 0, -0.3, 0.3], atol=1e-7)
    assert result.count == 3


def test_a_group_without_a_valid_trajectory_counts_for_nothing():
    result = group_advantages([0.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"], [False, False, True, True])
    np.testing.assert_array_equal(result.advantages, np.array([0, 0, 0.5, -0.5], np.float32))
    assert result.count == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_reward_is_refused_by_name(bad):
    with pytest.raises(UserError, match=r"trajectory 2 of group 'q7'.*(nan|inf)"):
        group_advantages([0.0, 1.0, bad], ["q3", "q3", "q7"], [True] * 3)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="2 rewards, 1 group keys"):
        group_advantages([0.0, 1.0], ["q"], [True, True])


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 3), st.booleans()), min_size=1, max_size=24), st.randoms())
def test_order_does_not_matter_and_each_group_sums_to_zero(episodes, random):
    order = list(range(len(episodes)))
    random.shuffle(order)
    straight = group_advantages(*zip(*episodes, strict=True))
    mixed = group_advantages(*zip(*[episodes[i] for i in order], strict=True))
    np.testing.assert_allclose(mixed.advantages, straight.advantages[order], atol=1e-6)
    for key in range(4):
        members = [i for i, episode in enumerate(episodes) if episode[1] == key]
        assert abs(straight.advantages[members].sum()) < 1e-4


def test_the_control_run_deals_the_same_advantages_to_the_valid_trajectories():
    rewards = np.arange(16.0)
    valid = np.arange(16) % 5 != 3
    result = group_advantages(rewards, [i % 2 for i in range(16)], valid)
    control = shuffled(result, seed=7)
    assert sorted(control.advantages) == sorted(result.advantages)
    assert not control.advantages[~valid].any()
    assert (control.advantages != result.advantages).any()
    np.testing.assert_array_equal(control.advantages, shuffled(result, seed=7).advantages)
    assert (control.advantages != shuffled(result, seed=8).advantages).any()
