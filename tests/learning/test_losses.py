import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig
from jaxsearchrl.learning.losses import policy_gradient, rerouted, supervised


def importance_sampling(*arguments):
    return policy_gradient(*arguments, LearningConfig())


def test_importance_sampling_by_hand():
    old = jnp.log(jnp.array([0.5, 0.2, 0.4, 0.0 + 1.0]))
    new = jnp.log(jnp.array([0.6, 0.1, 0.4, 0.3]))
    advantages = jnp.array([2.0, -1.0, 0.5, 9.0])
    weights = jnp.array([1.0, 1.0, 1.0, 0.0])
    # Ratios 1.2, 0.5, 1: -(2.4 - 0.5 + 0.5) / 8.
    loss, stats = importance_sampling(new, old, advantages, weights, 8.0)
    np.testing.assert_allclose(loss, -0.3, rtol=1e-6)
    means = stats.means()
    assert means["tokens"] == 3
    np.testing.assert_allclose(means["ratio"], 2.7 / 3, rtol=1e-6)
    np.testing.assert_allclose(means["gap"], (np.log(1.2) + np.log(2)) / 3, rtol=1e-6)
    np.testing.assert_allclose(means["max_gap"], np.log(2), rtol=1e-6)
    np.testing.assert_allclose(means["logprob"], np.log(0.6 * 0.1 * 0.4) / 3, rtol=1e-6)
    assert means["clamped"] == 0
    assert loss.dtype == jnp.float32


def test_at_ratio_one_the_gradient_is_minus_the_advantage_over_the_denominator_by_index():
    logprobs = jnp.array([-1.0, -2.0, -0.5, -3.0, 0.0])
    advantages = jnp.array([0.75, -0.25, 0.5, -1.0, 7.0])
    weights = jnp.array([1.0, 0.0, 1.0, 1.0, 0.0])
    loss, gradient = jax.value_and_grad(
        lambda lp: importance_sampling(lp, logprobs, advantages, weights, 4 * 100.0)[0]
    )(logprobs)
    np.testing.assert_allclose(gradient, [-0.75 / 400, 0, -0.5 / 400, 1.0 / 400, 0], rtol=1e-6)
    np.testing.assert_allclose(loss, -0.25 / 400, rtol=1e-6)


def test_a_sampled_end_token_of_small_probability_has_ratio_one():
    logprob = jnp.log(jnp.array([0.01]))
    _, stats = importance_sampling(logprob, logprob, jnp.ones(1), jnp.ones(1), 1.0)
    assert stats.means()["ratio"] == 1.0


def batch_of(lengths, advantages):
    total = sum(lengths)
    return jnp.zeros(total), jnp.zeros(total), jnp.asarray(np.repeat(np.float32(advantages), lengths)), jnp.ones(total)


@pytest.mark.parametrize("denominator", [16.0, 4 * 1024.0])
def test_the_loss_does_not_depend_on_the_split_into_batches(denominator):
    # Lengths 1, 2, 3, 10: a mean over tokens is 0.1875, but 0.0833 as the average of two pairs' means.
    lengths, advantages = [1, 2, 3, 10], [0.75, -0.25, -0.25, -0.25]
    whole, _ = importance_sampling(*batch_of(lengths, advantages), denominator)
    parts = [importance_sampling(*batch_of(lengths[i : i + 2], advantages[i : i + 2]), denominator)[0] for i in (0, 2)]
    np.testing.assert_allclose(whole, 0.1875 * 16 / denominator, rtol=1e-6)
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-6)


def test_statistics_add_up_and_padding_does_not_dilute_them():
    old, new = jnp.array([-1.0, -2.0, -3.0]), jnp.array([-1.5, -2.0, -1.0])
    advantages, weights = jnp.ones(3), jnp.ones(3)
    _, whole = importance_sampling(new, old, advantages, weights, 1.0)
    _, first = importance_sampling(new[:1], old[:1], advantages[:1], weights[:1], 1.0)
    padded = [jnp.pad(x, (0, 4)) for x in (new[1:], old[1:], advantages[1:], weights[1:])]
    _, rest = importance_sampling(*padded, 1.0)
    _, empty = importance_sampling(jnp.zeros(5), jnp.zeros(5), jnp.zeros(5), jnp.zeros(5), 1.0)
    merged = first.merged(rest).merged(empty).means()
    assert merged == pytest.approx(whole.means(), rel=1e-6)
    assert merged["max_gap"] == 2.0
    assert empty.means() == {"tokens": 0.0}


def test_wild_numbers_are_clamped_and_counted_and_padding_may_hold_anything():
    new = jnp.array([-1.0, -0.1, -200.0, jnp.nan])
    old = jnp.array([-1.0, -150.0, -0.1, -jnp.inf])
    weights = jnp.array([1.0, 1.0, 1.0, 0.0])
    (loss, stats), gradient = jax.value_and_grad(
        lambda lp: importance_sampling(lp, old, jnp.ones(4), weights, 1.0), has_aux=True
    )(new)
    np.testing.assert_allclose(loss, -(1 + np.exp(20) + np.exp(-20)), rtol=1e-6)
    np.testing.assert_array_equal(gradient, [-1, 0, 0, 0])
    assert float(stats.sums["clamped"]) == 2
    assert all(np.isfinite(value) for value in stats.means().values())


NEW, OLD = np.log([0.6, 0.1, 0.4, 0.9, 0.3]), np.log([0.5, 0.2, 0.4, 0.3, 1.0])  # ratios 1.2, 0.5, 1, 3 and padding
ADVANTAGES, WEIGHTS = np.array([2.0, -1.0, 0.5, -2.0, 9.0]), np.array([1.0, 1.0, 1.0, 1.0, 0.0])
BY_HAND = {
    # loss times 8, gradient by each log-prob times 8, clipped; clip to [0.9, 1.1], cap 2
    "importance_sampling": (-(2.4 - 0.5 + 0.5 - 6.0), [-2.4, 0.5, -0.5, 6.0], 0),
    "truncated": (
        -(1.2 * 2 * NEW[0] - 0.5 * NEW[1] + 0.5 * NEW[2] - 2 * 2 * NEW[3]),
        [-2.4, 0.5, -0.5, 4.0],
        1,
    ),
    # min(2.4, 1.1 · 2), min(-0.5, -0.9), 0.5, min(-6, -2.2): a clip that would help is ignored
    "ppo": (-(2.2 - 0.9 + 0.5 - 6.0), [0.0, 0.0, -0.5, 6.0], 2),
    "cispo": (
        -(1.1 * 2 * NEW[0] - 0.9 * NEW[1] + 0.5 * NEW[2] - 1.1 * 2 * NEW[3]),
        [-2.2, 0.9, -0.5, 2.2],
        3,
    ),
}


@pytest.mark.parametrize(("kind", "wanted"), BY_HAND.items(), ids=BY_HAND)
def test_each_loss_by_hand(kind, wanted):
    config = LearningConfig(loss=kind, clip_low=0.1, clip_high=0.1, ratio_cap=2.0)
    arrays = [jnp.asarray(x, jnp.float32) for x in (OLD, ADVANTAGES, WEIGHTS)]
    (loss, stats), gradient = jax.value_and_grad(lambda x: policy_gradient(x, *arrays, 8.0, config), has_aux=True)(
        jnp.asarray(NEW, jnp.float32)
    )
    np.testing.assert_allclose(loss * 8, wanted[0], rtol=1e-5)
    np.testing.assert_allclose(gradient * 8, [*wanted[1], 0.0], rtol=1e-5)
    assert float(stats.sums["clipped"]) == wanted[2]
    assert stats.means()["ratio"] == pytest.approx((1.2 + 0.5 + 1 + 3) / 4, rel=1e-5)


@pytest.mark.parametrize("kind", BY_HAND)
def test_at_ratio_one_all_losses_have_one_gradient(kind):
    logprobs, advantages = jnp.array([-1.0, -2.0, -0.5]), jnp.array([0.75, -0.25, 0.5])
    gradient = jax.grad(
        lambda x: policy_gradient(x, logprobs, advantages, jnp.ones(3), 4.0, LearningConfig(loss=kind))[0]
    )(logprobs)
    np.testing.assert_allclose(gradient, -advantages / 4, rtol=1e-6)


def test_kl_by_hand_is_positive_pulls_towards_the_reference_and_ends_with_the_mask():
    config = LearningConfig(kl_weight=0.5)
    new, reference = jnp.log(jnp.array([0.5, 0.2, 0.3])), jnp.log(jnp.array([0.25, 0.4, 0.9]))
    none, weights = jnp.zeros(3), jnp.array([1.0, 1.0, 0.0])

    def loss(logprobs):
        return policy_gradient(logprobs, new, none, weights, 10.0, config, reference=reference)

    (value, stats), gradient = jax.value_and_grad(loss, has_aux=True)(new)
    # d = log 0.5 and log 2: 0.5 + log 2 - 1 and 2 - log 2 - 1; the gradient by a log-prob is 1 - exp(d).
    np.testing.assert_allclose(value, 0.5 * (0.5 + 1.0 - 1.0) / 10, rtol=1e-5)
    np.testing.assert_allclose(gradient, [0.5 * 0.5 / 10, -0.5 * 1.0 / 10, 0.0], rtol=1e-5)
    assert stats.means()["kl"] == pytest.approx(0.25, rel=1e-5)
    nearer, _ = loss(new - gradient)
    assert nearer < value
    same, _ = policy_gradient(new, new, none, jnp.ones(3), 10.0, config, reference=new)
    assert same == 0


@pytest.mark.parametrize(("d", "pull"), [(-19.0, 1.0), (-30.0, 1.0), (-1e4, 1.0), (2.0, 1 - np.exp(2.0)), (30.0, 0.0)])
def test_kl_pulls_a_policy_back_however_far_it_has_become_too_sure(d, pull):
    new = jnp.array([-0.5])
    gradient = jax.grad(
        lambda x: policy_gradient(
            x, new, jnp.zeros(1), jnp.ones(1), 1.0, LearningConfig(kl_weight=1.0), reference=new + d
        )[0]
    )(new)
    np.testing.assert_allclose(gradient, [pull], rtol=1e-4)


def test_what_was_not_sampled_has_ratio_one_and_no_gap():
    new, old = jnp.array([-1.0, -2.0]), jnp.array([-0.5, 0.0])
    (_, stats), gradient = jax.value_and_grad(
        lambda x: policy_gradient(
            x, old, jnp.ones(2), jnp.ones(2), 1.0, LearningConfig(), sampled=jnp.array([1.0, 0.0])
        ),
        has_aux=True,
    )(new)
    np.testing.assert_allclose(gradient, [-np.exp(-0.5), -1.0], rtol=1e-6)
    assert stats.means()["gap"] == pytest.approx(0.25)


def test_supervised_is_the_cross_entropy_of_the_weighted_tokens():
    logprobs, weights = jnp.array([-1.0, -3.0, jnp.nan]), jnp.array([1.0, 1.0, 0.0])
    (loss, stats), gradient = jax.value_and_grad(lambda lp: supervised(lp, weights, 8.0), has_aux=True)(logprobs)
    assert float(loss) == 0.5
    np.testing.assert_array_equal(gradient, [-0.125, -0.125, 0])
    assert stats.means() == {"tokens": 2.0, "logprob": -2.0}


def test_tokens_that_are_routed_otherwise_by_hand():
    """Of four slots one has no known route; of the other three one differs."""
    own, sampler = (jnp.asarray(routes, jnp.uint32) for routes in ([5, 5, 2**32 - 1, 9], [5, 7, 2**32 - 1, 0]))
    assert rerouted(own, sampler) == {"routed": 3, "rerouted": 1}
