"""The pieces joined on a toy trunk: what may change the step's gradient, and what must not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.learning.action_logprobs import action_logprobs
from jaxsearchrl.learning.losses import importance_sampling
from jaxsearchrl.learning.packing import PackedBatch, TrainRow, pack

D, V, C = 8, 30, 64.0
BASE = jax.random.normal(jax.random.key(1), (V, D))
HEAD = jax.random.normal(jax.random.key(2), (V, D))
LORA = 0.3 * jax.random.normal(jax.random.key(3), (D, D))


def trunk(lora: jax.Array, batch: PackedBatch) -> jax.Array:
    """[B, T, D]: each token's embedding, plus a trained function of the mean of its trajectory so far."""
    embedded = BASE[batch.tokens] + 0.1 * jnp.cos(batch.positions)[..., None]
    T = batch.tokens.shape[1]
    seen = (batch.segments[:, :, None] == batch.segments[:, None, :]) & jnp.tril(jnp.ones((1, T, T), bool))
    mean = jnp.einsum("bts,bsd->btd", seen / seen.sum(-1, keepdims=True), embedded)
    return embedded + jnp.tanh(mean @ lora)


def batch_loss(lora, batch, denominator):
    hidden = trunk(lora, batch).reshape(-1, D)[batch.action_index]
    logprobs, _ = action_logprobs(
        hidden, batch.targets, HEAD, temperature=0.9, vocab_size=V, n_actions=batch.n_actions, chunk=16
    )
    loss, stats = importance_sampling(logprobs, batch.old_logprobs, batch.advantages, batch.weights, denominator)
    return loss, (stats, logprobs)


batch_gradient = jax.jit(jax.value_and_grad(batch_loss, has_aux=True))


def step(rows, pack_rows, pack_tokens, skip_zero=True):
    """The step's loss and gradient summed over its batches, and its statistics."""
    loss, gradient, stats = 0.0, jnp.zeros_like(LORA), None
    for batch in pack(rows, pack_rows=pack_rows, pack_tokens=pack_tokens, skip_zero=skip_zero).batches:
        (value, (seen, _)), grads = batch_gradient(LORA, batch, len(rows) * C)
        loss, gradient = loss + value, gradient + grads
        stats = seen if stats is None else stats.merged(seen)
    assert stats is not None
    return loss, gradient, stats.means()


def make_rows(lengths, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for uid, length in enumerate(lengths):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        logprobs = np.where(mask, -rng.uniform(2, 4, length), 0.0).astype(np.float32)
        rows.append(TrainRow(uid, rng.integers(0, V, length, np.int32), mask, logprobs, float(rng.normal())))
    return rows


def assert_same_step(one, other):
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-4, atol=1e-7)
    assert one[2] == pytest.approx(other[2], rel=1e-5)


@pytest.mark.parametrize(("pack_rows", "pack_tokens"), [(1, 24), (2, 24), (1, 48), (3, 32)])
def test_loss_and_gradient_do_not_depend_on_packing_padding_or_the_number_of_batches(pack_rows, pack_tokens):
    rows = make_rows([24, 3, 9, 16, 5, 12, 2])
    expected = step(rows, pack_rows=7, pack_tokens=64)
    assert np.abs(expected[1]).max() > 1e-4
    assert_same_step(step(rows, pack_rows, pack_tokens), expected)


def test_the_step_is_the_sum_of_its_rows_alone():
    rows = make_rows([7, 4, 11])
    loss, gradient, _ = step(rows, pack_rows=1, pack_tokens=24)
    alone = [step([row], pack_rows=1, pack_tokens=24) for row in rows]
    # Alone, N is 1; in the step it is 3.
    np.testing.assert_allclose(loss, sum(part[0] for part in alone) / 3, rtol=1e-5)
    np.testing.assert_allclose(gradient, sum(part[1] for part in alone) / 3, rtol=1e-4, atol=1e-7)


def test_the_order_of_the_rows_changes_no_bit():
    rows = make_rows([24, 3, 9, 16, 5, 12, 2])
    one, other = step(rows, 2, 24), step(rows[::-1], 2, 24)
    assert one[0] == other[0]
    np.testing.assert_array_equal(one[1], other[1])


def test_rows_with_advantage_zero_can_be_left_out():
    rows = [replace(row, advantage=0.0) if row.uid % 2 else row for row in make_rows([9, 8, 7, 6])]
    with_zero, without = step(rows, 2, 16, skip_zero=False), step(rows, 2, 16)
    np.testing.assert_allclose(with_zero[0], without[0], rtol=1e-5)
    np.testing.assert_allclose(with_zero[1], without[1], rtol=1e-4, atol=1e-7)
    assert with_zero[2]["tokens"] == sum(row.action_tokens for row in rows)


def test_an_observation_is_read_but_not_trained_on():
    (row,) = make_rows([12])
    observation = 1 + int(np.flatnonzero(~row.action_mask[1:-1])[0])
    changed = replace(row, tokens=row.tokens.copy())
    changed.tokens[observation] = (row.tokens[observation] + 1) % V

    def logprobs(row):
        (batch,) = pack([row], pack_rows=1, pack_tokens=16).batches
        return batch, batch_gradient(LORA, batch, C)[0][1][1]

    (batch, before), (_, after) = logprobs(row), logprobs(changed)
    n = int(batch.n_actions)
    later = np.asarray(batch.action_index)[:n] >= observation
    assert (np.abs(before - after)[:n][later] > 1e-6).all()
    np.testing.assert_array_equal(np.asarray(before)[:n][~later], np.asarray(after)[:n][~later])
    # Its own log-prob is in no slot: the actions are exactly the mask.
    assert sorted(np.asarray(batch.action_index)[:n] + 1) == np.flatnonzero(row.action_mask).tolist()
    assert step([row], 1, 16)[2]["tokens"] == row.action_tokens


def test_an_unchanged_policy_has_ratio_one_and_still_learns():
    rows = make_rows([10, 6])
    on_policy = []
    for row in rows:
        (batch,) = pack([row], pack_rows=1, pack_tokens=16).batches
        logprobs = np.asarray(batch_gradient(LORA, batch, C)[0][1][1])[: row.action_tokens]
        sampled = np.zeros(len(row), np.float32)
        sampled[row.action_mask] = logprobs
        on_policy.append(replace(row, sample_logprobs=sampled))
    _, gradient, means = step(on_policy, pack_rows=2, pack_tokens=16)
    assert means["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert means["max_gap"] < 1e-5
    assert np.abs(gradient).max() > 1e-4
