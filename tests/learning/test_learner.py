"""The learner by hand, and what it may touch, compile and allocate."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig, LoraConfig
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss, supervised_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import PackedBatch, pack
from jaxsearchrl.models.architecture import Architecture, Rope
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.telemetry.compilations import compilations

POLICY_LOSS = policy_loss(LearningConfig())

TABLE = np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], [0.5, 0.2, 0.2, 0.1]])
"""Row i: the distribution of what follows word i."""


def markov_learner(loss, temperature=1.0):
    """A decoder without layers over four words: the next depends on the last alone, as TABLE says."""
    arch = Architecture("llama", 4, 4, 0, 1, 1, 4, 4, 0.0, False, False, False, False, 16, Rope())
    base = {
        "embed_tokens": jnp.eye(4),  # of root mean square 1/2, so that the norm doubles it
        "norm.weight": jnp.full(4, 0.5),
        "lm_head": jnp.asarray(np.log(TABLE).T, jnp.float32),
    }
    model = build_model(arch, LoraConfig(rank=0))
    assert base.keys() == model.specs.keys()
    return Learner(model, base, loss, vocab_size=4, temperature=temperature)


def on_policy(row, table=TABLE):
    """The row as a policy with the table would have sampled it."""
    logprobs = np.zeros(len(row), np.float32)
    at = np.flatnonzero(row.action_mask)
    logprobs[at] = np.log(table[row.tokens[at - 1], row.tokens[at]])
    return replace(row, sample_logprobs=logprobs)


def test_logprobs_of_four_words_by_hand(new_row):
    rows = [new_row(0, 1.0, [1, 0], [3, 2, 0], [1, 1], [2]), new_row(1, 2.0, [1, 0], [0])]
    (batch,) = pack(rows, pack_rows=1, pack_tokens=12).batches
    # Row 1 first (1 0 | 0), then 0 -> 3 -> 2 -> 0 | 1 1 | -> 2.
    expected = np.log([0.1, 0.4, 0.2, 0.7, 0.25])
    logprobs = markov_learner(POLICY_LOSS).logprobs({}, batch)
    np.testing.assert_allclose(logprobs[:5], expected, rtol=1e-6)
    assert not np.any(logprobs[5:])


def test_the_temperature_is_that_of_the_sampler(new_row):
    (batch,) = pack([new_row(0, 1.0, [0], [2, 3])], pack_rows=1, pack_tokens=4).batches
    # Temperature 0.5 squares probabilities: 0.09 of 0.30, and 0.01 of 0.52.
    logprobs = markov_learner(POLICY_LOSS, 0.5).logprobs({}, batch)
    np.testing.assert_allclose(logprobs[:2], np.log([0.09 / 0.30, 0.01 / 0.52]), rtol=1e-5)


def test_the_loss_of_an_unchanged_policy_by_hand(new_row):
    rows = [new_row(0, 0.5, [0], [3, 2, 0]), new_row(1, -0.25, [0], [3, 1], [1], [1]), new_row(2, -0.25, [0], [1])]
    batches = pack([on_policy(row) for row in rows], pack_rows=1, pack_tokens=5).batches
    assert len(batches) == 2
    denominator = 3 * 10.0
    _, stats = markov_learner(POLICY_LOSS).gradient({}, batches, denominator)
    # -(3 * 0.5 - 3 * 0.25 - 1 * 0.25) = -0.5, whatever the words.
    assert float(stats.sums["loss"]) == pytest.approx(-0.5, rel=1e-6)
    means = stats.means()
    assert means["tokens"] == 7
    assert means["ratio"] == pytest.approx(1.0, rel=1e-6)
    assert means["max_gap"] < 1e-6
    # Each action's entropy is that of the word before it: six after 0, 3 and 2, the last one after 1.
    entropy = -(TABLE * np.log(TABLE)).sum(1)
    assert means["entropy"] == pytest.approx(entropy[[0, 3, 2, 0, 3, 1, 0]].mean(), rel=1e-5)


def test_the_loss_of_a_changed_policy_by_hand(new_row):
    row = on_policy(new_row(0, 2.0, [0], [3, 2]), np.full((4, 4), 0.25))
    (batch,) = pack([row], pack_rows=1, pack_tokens=4).batches
    _, stats = markov_learner(POLICY_LOSS).gradient({}, [batch], 10.0)
    # Ratios 0.4 / 0.25 and 0.2 / 0.25.
    assert float(stats.sums["loss"]) == pytest.approx(-2.0 * (1.6 + 0.8), rel=1e-5)


def test_the_supervised_loss_by_hand(new_row):
    (batch,) = pack([new_row(0, 1.0, [0], [3, 2])], pack_rows=1, pack_tokens=4).batches
    _, stats = markov_learner(supervised_loss).gradient({}, [batch], 2.0)
    assert float(stats.sums["loss"]) == pytest.approx(-np.log(0.4 * 0.2), rel=1e-5)


@pytest.fixture(scope="module")
def learner(tiny):
    return Learner(tiny.model, tiny.base, POLICY_LOSS, vocab_size=tiny.vocab_size, temperature=1.0)


def test_the_gradient_enters_at_the_positions_before_actions_and_nowhere_else(learner, rows):
    batch = pack(rows, pack_rows=1, pack_tokens=24).batches[0]
    assert batch.segments.max() > 2
    x = np.random.default_rng(0).normal(size=(1, 24, 24)).astype(np.float32)
    x_grad, _ = learner._head(learner._top, x, batch, 1.0)
    touched = np.flatnonzero(np.abs(x_grad[0]).max(-1))
    assert touched.tolist() == sorted(set(batch.action_index[: int(batch.n_actions)].tolist()))


def test_a_gradient_of_nothing_is_refused(tiny, learner):
    with pytest.raises(ValueError, match="no batch"):
        learner.gradient(tiny.lora, [], 1.0)


@functools.cache
def optimizer_and_update(constant):
    optimizer = make_optimizer(LearningConfig(learning_rate=1e-3, loss_constant=constant, max_grad_norm=0.5), 10)
    return optimizer, make_update(optimizer)


def addresses(weights):
    return {name: value.unsafe_buffer_pointer() for name, value in weights.items()}


def test_an_update_gives_up_the_old_adapter_and_leaves_the_base_where_it_was(tiny, learner, rows):
    before = addresses(tiny.base)
    lora = jax.tree.map(jnp.copy, tiny.lora)
    optimizer, update = optimizer_and_update(64.0)
    state = optimizer.init(lora)
    grads, _ = learner.gradient(lora, pack(rows, pack_rows=1, pack_tokens=24).batches, 100.0)
    assert {name: g.shape for name, g in grads.items()} == {name: w.shape for name, w in lora.items()}
    assert all(g.dtype == jnp.float32 for g in grads.values())
    new, _, stats = update(grads, state, lora)
    assert float(stats["updated"]) == 1
    assert all(np.abs(new[name] - tiny.lora[name]).max() > 1e-4 for name in new)
    assert all(value.is_deleted() for value in lora.values())
    assert addresses(tiny.base) == before
    # What the learner holds are those very buffers, layer by layer and at the top.
    held = [*learner._top.values(), *(value for layer in learner._base for value in layer.values())]
    assert sorted(value.unsafe_buffer_pointer() for value in held) == sorted(before.values())


def updated(learner, tiny, rows, shape, constant):
    """The adapter after two steps."""
    lora = jax.tree.map(jnp.copy, tiny.lora)
    optimizer, update = optimizer_and_update(constant)
    state = optimizer.init(lora)
    batches = pack(rows, pack_rows=shape[0], pack_tokens=shape[1]).batches
    for _ in range(2):
        grads, _ = learner.gradient(lora, batches, len(rows) * constant)
        lora, state, stats = update(grads, state, lora)
        assert float(stats["grad_norm"]) > 0.5  # so that clipping takes part
    return lora


def test_neither_the_loss_constant_nor_the_number_of_batches_changes_the_update(tiny, learner, rows):
    expected = updated(learner, tiny, rows, (1, 24), 64.0)
    for shape, constant in (((1, 24), 64_000.0), ((2, 24), 64.0)):
        for name, value in updated(learner, tiny, rows, shape, constant).items():
            assert np.abs(value - tiny.lora[name]).max() > 1e-3
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-6, err_msg=name)


def test_actions_with_a_positive_advantage_become_likelier(tiny, learner, new_row):
    rows = [new_row(0, 0.5, [1, 2], [3, 4, 5]), new_row(1, -0.5, [1, 2], [30, 31, 32])]
    (batch,) = pack(rows, pack_rows=1, pack_tokens=24).batches
    before = learner.logprobs(tiny.lora, batch)
    optimizer, update = optimizer_and_update(64.0)
    grads, _ = learner.gradient(tiny.lora, [replace(batch, old_logprobs=before)], 2 * 64.0)
    new, _, _ = update(grads, optimizer.init(tiny.lora), jax.tree.map(jnp.copy, tiny.lora))
    change = np.asarray(learner.logprobs(new, batch) - before)
    assert change[:3].sum() > 0.01
    assert change[3:6].sum() < -0.01


def test_nothing_is_compiled_after_the_first_step(tiny, rows):
    learner = Learner(tiny.model, tiny.base, POLICY_LOSS, vocab_size=tiny.vocab_size, temperature=1.0)
    optimizer, update = optimizer_and_update(64.0)
    lora, counts = jax.tree.map(jnp.copy, tiny.lora), []
    state = optimizer.init(lora)
    # One batch, then three, then two with other numbers of actions and another denominator.
    for some, T in ((rows[:1], 24), (rows, 24), (rows[3:8], 24)):
        before = compilations()
        batches = pack(some, pack_rows=1, pack_tokens=T).batches
        grads, _ = learner.gradient(lora, batches, len(some) * 64.0)
        lora, state, _ = update(grads, state, lora)
        counts.append((len(batches), compilations() - before))
    assert counts[0][0] == 1
    assert counts[0][1] > 0
    assert counts[1][0] > 1
    assert [compiled for _, compiled in counts[1:]] == [0, 0]


def test_the_head_holds_no_array_of_tokens_by_vocabulary():
    B, T, D, V = 2, 8192, 16, 151_936
    arch = Architecture("llama", V, D, 0, 1, 1, 4, 4, 1e-5, True, False, False, False, T, Rope())
    learner = Learner(
        build_model(arch, LoraConfig(rank=0)),
        {"embed_tokens": jax.ShapeDtypeStruct((V, D), jnp.bfloat16), "norm.weight": jax.ShapeDtypeStruct((D,), "f4")},
        POLICY_LOSS,
        vocab_size=V,
        temperature=1.0,
    )
    i32, f32 = (lambda *shape, d=dtype: jax.ShapeDtypeStruct(shape, d) for dtype in (jnp.int32, jnp.float32))
    A = B * T
    batch = PackedBatch(i32(B, T), i32(B, T), i32(B, T), i32(A), i32(A), *[f32(A)] * 5, i32(A), i32())
    memory = learner._head.lower(learner._top, f32(B, T, D), batch, 1.0).compile().memory_analysis()
    assert memory is not None
    # A chunk of 128 tokens by the vocabulary is 78 MB; all 16,384 tokens would be 10 GB.
    assert memory.temp_size_in_bytes < 5 * 128 * V * 4


def test_a_base_in_bfloat16_learns_nearly_the_same(tiny, tiny_bfloat16, learner, rows):
    batches = pack(rows, pack_rows=1, pack_tokens=24).batches
    other = Learner(
        tiny_bfloat16.model,
        tiny_bfloat16.base,
        POLICY_LOSS,
        vocab_size=tiny.vocab_size,
        temperature=1.0,
    )
    for batch in batches:
        n = int(batch.n_actions)
        exact, rounded = (x.logprobs(tiny.lora, batch)[:n] for x in (learner, other))
        np.testing.assert_allclose(rounded, exact, atol=0.3)
        assert np.abs(rounded - exact).max() > 1e-4
    flat = lambda grads: np.concatenate([np.ravel(grads[name]) for name in sorted(grads)])  # noqa: E731
    (exact, _), (rounded, _) = (x.gradient(tiny.lora, batches, 100.0) for x in (learner, other))
    assert all(g.dtype == jnp.float32 for g in rounded.values())
    a, b = flat(exact), flat(rounded)
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.99
