from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig
from jaxsearchrl.learning.optimizer import apply_update, learning_rate_schedule, make_optimizer

CONFIG = LearningConfig(learning_rate=0.01, loss_constant=1.0)


def weights():
    return {"a": jnp.array([1.0, -2.0, 0.5]), "b": jnp.array([[0.1], [0.2]])}


def gradients(step: int = 0):
    return jax.tree.map(lambda w: jnp.sin(7 * w + step) * 1e-3, weights())


def run(config, grads_of_steps, total_steps=10, lora=None, state=None):
    optimizer = make_optimizer(config, total_steps)
    lora = weights() if lora is None else lora
    state = optimizer.init(lora) if state is None else state
    update = jax.jit(lambda grads, state, lora: apply_update(optimizer, grads, state, lora))
    log = []
    for grads in grads_of_steps:
        lora, state, stats = update(grads, state, lora)
        log.append({name: float(value) for name, value in stats.items()})
    return lora, state, log


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_two_steps_of_adam_by_hand():
    config = replace(CONFIG, b1=0.9, b2=0.5, weight_decay=0.1)
    lora, _, _ = run(config, [{"w": jnp.array([2.0])}, {"w": jnp.array([-1.0])}], lora={"w": jnp.array([1.0])})
    first = 1.0 - 0.01 * (1.0 + 0.1 * 1.0)
    m = (0.9 * 0.2 + 0.1 * -1.0) / (1 - 0.9**2)
    v = (0.5 * 2.0 + 0.5 * 1.0) / (1 - 0.5**2)
    np.testing.assert_allclose(lora["w"], [first - 0.01 * (m / np.sqrt(v) + 0.1 * first)], rtol=1e-6)


@pytest.mark.parametrize("max_grad_norm", [0.0, 1e-3])
def test_the_loss_constant_does_not_change_the_update(max_grad_norm):
    config = LearningConfig(loss_constant=1024.0, max_grad_norm=max_grad_norm)
    results = []
    for scale in (1.0, 1000.0):
        scaled = [jax.tree.map(lambda g: g / (1024.0 * scale), gradients(step)) for step in range(5)]  # noqa: B023
        lora, _, log = run(replace(config, loss_constant=1024.0 * scale), scaled)
        results.append((jax.tree.map(lambda new, old: new - old, lora, weights()), log))
    (small, small_log), (large, large_log) = results
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=0), small, large)
    for one, other in zip(small_log, large_log, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    assert small_log[0]["grad_norm"] > 1e-3  # so that the second case does clip


def test_clipping_limits_the_norm_of_the_scaled_gradient():
    # Moments tell what Adam saw: b1 = 0 makes the first moment the clipped gradient.
    grads = {"w": jnp.array([3.0, 4.0]) / 100}
    config = replace(CONFIG, b1=0.0, loss_constant=100.0, max_grad_norm=1.0)
    _, state, log = run(config, [grads], lora={"w": jnp.zeros(2)})
    mu = next(leaf for leaf in jax.tree.leaves(state) if leaf.shape == (2,))
    np.testing.assert_allclose(mu, [0.6, 0.8], rtol=1e-6)
    assert log[0]["grad_norm"] == pytest.approx(5.0)


def test_a_step_without_signal_changes_nothing_although_adam_remembers():
    config = replace(CONFIG, weight_decay=0.1)
    lora, state, _ = run(config, [gradients(), gradients(1)])
    zero = jax.tree.map(jnp.zeros_like, gradients())
    same_lora, same_state, log = run(config, [zero, zero], lora=lora, state=state)
    assert_equal(same_lora, lora)
    assert_equal(same_state, state)
    assert [entry["updated"] for entry in log] == [0.0, 0.0]


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_says_so(bad):
    lora, state, _ = run(CONFIG, [gradients()])
    broken = gradients(1)
    broken["a"] = broken["a"].at[1].set(bad)
    same_lora, same_state, log = run(CONFIG, [broken], lora=lora, state=state)
    assert_equal(same_lora, lora)
    assert_equal(same_state, state)
    assert log[0]["updated"] == 0.0
    assert not np.isfinite(log[0]["grad_norm"])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.5 + np.sqrt(0.125), 0.5, 0.5 - np.sqrt(0.125)]),
    ],
)
def test_schedules_by_hand(schedule, expected):
    config = replace(CONFIG, learning_rate=0.2, schedule=schedule, warmup_steps=2)
    rates = learning_rate_schedule(config, total_steps=6)(jnp.arange(6))
    np.testing.assert_allclose(rates, 0.2 * np.array(expected), rtol=1e-6)
    assert rates.dtype == jnp.float32


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_six_steps_equal_three_and_three_with_the_restored_state(schedule):
    config = replace(CONFIG, schedule=schedule, warmup_steps=2, weight_decay=0.01)
    steps = [gradients(step) for step in range(6)]
    straight, straight_state, straight_log = run(config, steps, total_steps=6)
    half, state, first_log = run(config, steps[:3], total_steps=6)
    restored = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)
    resumed, resumed_state, second_log = run(config, steps[3:], total_steps=6, lora=half, state=restored)
    assert first_log + second_log == straight_log
    assert len({entry["learning_rate"] for entry in straight_log}) > 3
    assert_equal(resumed, straight)
    assert_equal(resumed_state, straight_state)


def test_small_updates_are_not_lost():
    config = replace(CONFIG, learning_rate=1e-5)
    lora, state, _ = run(config, [gradients()] * 100, lora=weights())
    moved = jax.tree.map(lambda new, old: np.abs(new - old), lora, weights())
    for leaf in jax.tree.leaves(moved):
        np.testing.assert_allclose(leaf, 1e-3, rtol=0.02)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(lora))
    assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(state))


def test_bfloat16_masters_are_refused_by_name():
    with pytest.raises(TypeError, match=r"\['q'\] is bfloat16"):
        make_optimizer(CONFIG, 10).init({"q": jnp.zeros(2, jnp.bfloat16)})


def test_bfloat16_gradients_still_give_float32_weights_and_moments():
    grads = jax.tree.map(lambda g: g.astype(jnp.bfloat16), gradients())
    lora, state, _ = run(CONFIG, [grads])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(lora))
    assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(state))
