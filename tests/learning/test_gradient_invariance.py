"""Learner and packing on the real decoder: what may change the step's gradient, and what must not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig
from jaxsearchrl.learning.learner import Learner, policy_loss
from jaxsearchrl.learning.packing import pack
from jaxsearchrl.models.decoder import forward, head_of
from jaxsearchrl.models.state import Packed

POLICY_LOSS = policy_loss(LearningConfig())

C, TEMPERATURE, LONGEST = 64.0, 0.8, 24


@pytest.fixture(scope="module")
def learner(tiny):
    return Learner(tiny.model, tiny.base, POLICY_LOSS, vocab_size=tiny.vocab_size, temperature=TEMPERATURE)


@pytest.fixture(scope="module")
def plain(tiny):
    """The step as one program: every row padded on a line of its own, the whole softmax, `jax.grad` of it all."""

    def loss(lora, tokens, mask, sampled, advantages, denominator):
        N, T = tokens.shape
        state = Packed(jnp.broadcast_to(jnp.arange(T), (N, T)), jnp.ones((N, T), jnp.int32))
        hidden, _ = forward(tiny.model, tiny.base, lora, tokens, state)
        logits = (hidden @ head_of(tiny.base).T)[:, :-1, : tiny.vocab_size] / TEMPERATURE
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)[..., 0]
        ratios = jnp.exp(logprobs - sampled[:, 1:])
        return -jnp.sum(mask[:, 1:] * advantages[:, None] * ratios) / denominator, logprobs

    program = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def step(rows):
        """loss, gradient, and log-probs [N, T - 1] of the rows' tokens but the first."""
        line = lambda values: jnp.stack([jnp.pad(jnp.asarray(v), (0, LONGEST - len(v))) for v in values])  # noqa: E731
        fields = (line([getattr(row, name) for row in rows]) for name in ("tokens", "action_mask", "sample_logprobs"))
        advantages = jnp.asarray([row.advantage for row in rows])
        (value, logprobs), gradient = program(tiny.lora, *fields, advantages, len(rows) * C)
        return value, gradient, logprobs

    return step


def step(learner, tiny, rows, batches):
    """The step's loss and gradient over its batches, and its statistics."""
    gradient, stats = learner.gradient(tiny.lora, batches, len(rows) * C)
    return float(stats.sums["loss"]) / (len(rows) * C), gradient, stats.means()


def one_row_a_batch(rows):
    return [pack([row], pack_rows=1, pack_tokens=LONGEST).batches[0] for row in rows]


def assert_same_gradient(one, other):
    """To 1e-5 of each weight's largest entry."""
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert np.abs(value).max() > 1e-6, name
        np.testing.assert_allclose(one[name], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize("shape", [(1, 24), (2, 24), (1, 80)])
def test_any_packing_gives_the_gradient_of_one_plain_program(tiny, learner, plain, rows, shape):
    loss, gradient, _ = plain(rows)
    packing = pack(rows, pack_rows=shape[0], pack_tokens=shape[1])
    assert packing.packed == len(rows)
    ours, our_gradient, means = step(learner, tiny, rows, packing.batches)
    np.testing.assert_allclose(ours, loss, rtol=1e-5)
    assert_same_gradient(our_gradient, gradient)
    assert means["tokens"] == sum(row.action_tokens for row in rows)


def test_one_row_at_a_time_gives_the_same_gradient(tiny, learner, plain, rows):
    loss, gradient, _ = plain(rows)
    ours, our_gradient, _ = step(learner, tiny, rows, one_row_a_batch(rows))
    np.testing.assert_allclose(ours, loss, rtol=1e-5)
    assert_same_gradient(our_gradient, gradient)


def test_statistics_do_not_depend_on_packing(tiny, learner, rows):
    _, _, together = step(learner, tiny, rows, pack(rows, pack_rows=2, pack_tokens=24).batches)
    _, _, alone = step(learner, tiny, rows, one_row_a_batch(rows))
    assert together == pytest.approx(alone, rel=1e-5)
    assert together["entropy"] > 0.1


def test_the_order_of_the_rows_changes_no_bit_and_that_of_the_batches_next_to_nothing(tiny, learner, rows):
    batches = pack(rows, pack_rows=1, pack_tokens=24).batches
    assert len(batches) > 2
    loss, gradient, _ = step(learner, tiny, rows, batches)
    same_loss, same, _ = step(learner, tiny, rows, pack(rows[::-1], pack_rows=1, pack_tokens=24).batches)
    assert same_loss == loss
    jax.tree.map(np.testing.assert_array_equal, same, gradient)
    assert_same_gradient(step(learner, tiny, rows, batches[::-1])[1], gradient)


def test_twins_with_opposite_advantages_cancel(tiny, learner, rows):
    good = replace(rows[0], uid=20, advantage=0.5)
    bad = replace(rows[0], uid=21, advantage=-0.5)
    (batch,) = pack([good, bad], pack_rows=1, pack_tokens=24).batches
    assert (batch.segments > 0).sum() == len(good)
    _, gradient, means = step(learner, tiny, [good, bad], [batch])
    assert means["tokens"] == 2 * good.action_tokens
    largest = max(np.abs(value).max() for value in step(learner, tiny, [good], one_row_a_batch([good]))[1].values())
    assert all(np.abs(value).max() < 1e-6 * largest for value in gradient.values())


def test_rows_with_advantage_zero_can_be_left_out(tiny, learner, rows):
    rows = [replace(row, advantage=0.0) if row.uid % 2 else row for row in rows]
    everything = pack(rows, pack_rows=2, pack_tokens=24, skip_zero=False)
    taught = pack(rows, pack_rows=2, pack_tokens=24)
    assert everything.packed == taught.packed + 4
    with_zero, without = (step(learner, tiny, rows, packing.batches) for packing in (everything, taught))
    np.testing.assert_allclose(with_zero[0], without[0], rtol=1e-5)
    assert_same_gradient(with_zero[1], without[1])


def test_a_step_without_any_signal_has_gradient_zero(tiny, learner, rows):
    rows = [replace(row, advantage=0.0) for row in rows]
    _, gradient, means = step(learner, tiny, rows, pack(rows, pack_rows=2, pack_tokens=24, skip_zero=False).batches)
    assert not any(np.any(value) for value in gradient.values())
    assert means["ratio"] > 0


def logprobs_by_uid(learner, tiny, rows, packing):
    """Log-probs of each row's actions. Slots are told apart by the rows' advantages, which must differ."""
    found = {row.uid: [] for row in rows}
    owners = {np.float32(row.advantage): row.uid for row in rows}
    assert len(owners) == len(rows)
    for batch in packing.batches:
        n = int(batch.n_actions)
        for advantage, logprob in zip(batch.advantages[:n], learner.logprobs(tiny.lora, batch)[:n], strict=True):
            found[owners[advantage]].append(float(logprob))
    return found


@pytest.mark.parametrize("shape", [(1, 24), (1, 80)])
def test_logprobs_of_rows_that_share_a_beginning_are_those_of_the_rows_alone(tiny, learner, plain, rows, shape):
    found = logprobs_by_uid(learner, tiny, rows, pack(rows, pack_rows=shape[0], pack_tokens=shape[1]))
    _, _, expected = plain(rows)
    for row, values in zip(rows, np.asarray(expected), strict=True):
        at = np.flatnonzero(row.action_mask) - 1
        np.testing.assert_allclose(found[row.uid], values[at], atol=1e-5)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_what_one_row_does_later_is_nothing_to_those_it_shares_a_beginning_with(tiny, learner, rows, changed):
    """Rows 0 to 2 share the prompt and the first action; 0 and 1 the observation and half of the second action too."""
    group = rows[:3]
    other = replace(group[changed], tokens=group[changed].tokens.copy())
    other.tokens[-2] += 1  # an action; the order of the rows stays
    before = pack(group, pack_rows=1, pack_tokens=80)
    after = pack([other if row.uid == changed else row for row in group], pack_rows=1, pack_tokens=80)
    ((first,), (second,)) = before.batches, after.batches
    np.testing.assert_array_equal(first.segments, second.segments)
    was, now = (logprobs_by_uid(learner, tiny, group, packing) for packing in (before, after))
    for row in group:
        if row.uid != changed:
            assert now[row.uid] == was[row.uid]
        else:
            assert now[row.uid][:-2] == was[row.uid][:-2]
            assert abs(now[row.uid][-1] - was[row.uid][-1]) > 1e-5  # it did read its own new token


def test_an_observation_is_read_but_not_trained_on(tiny, learner, rows):
    row = rows[0]
    observation = 14  # the second of the four tokens after the first action
    assert not row.action_mask[observation]
    other = replace(row, tokens=row.tokens.copy())
    other.tokens[observation] += 1
    (batch,) = one_row_a_batch([row])
    before, after = (learner.logprobs(tiny.lora, one_row_a_batch([r])[0]) for r in (row, other))
    n = int(batch.n_actions)
    later = np.asarray(batch.action_index)[:n] >= observation
    assert later.sum() == 3
    assert (np.abs(before - after)[:n][later] > 1e-6).all()
    np.testing.assert_array_equal(np.asarray(before)[:n][~later], np.asarray(after)[:n][~later])
    # Its own log-prob is in no slot: the actions are exactly the mask.
    assert sorted(np.asarray(batch.action_index)[:n] + 1) == np.flatnonzero(row.action_mask).tolist()
