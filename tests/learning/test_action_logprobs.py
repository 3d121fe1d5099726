import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.learning.action_logprobs import action_logprobs
from jaxsearchrl.sampling.choose import choose

A, D, V = 21, 16, 50


def naive(hidden, targets, head, temperature, vocab_size, n_actions):
    logits = (hidden.astype(jnp.float32) @ head.astype(jnp.float32).T)[:, :vocab_size] / temperature
    logp = jax.nn.log_softmax(logits)
    real = jnp.arange(len(targets)) < n_actions
    chosen = jnp.take_along_axis(logp, targets[:, None], axis=-1)[:, 0]
    return jnp.where(real, chosen, 0.0), jnp.where(real, -jnp.sum(jnp.exp(logp) * logp, axis=-1), 0.0)


def example(vocab_size=V, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (A, D)).astype(dtype)
    head = jax.random.normal(keys[1], (V, D)).astype(dtype)
    targets = jax.random.randint(keys[2], (A,), 0, vocab_size)
    return hidden, targets, head, jax.random.normal(keys[3], (A,))


@pytest.mark.parametrize("vocab_size", [V, 43])
def test_values_and_gradients_equal_the_whole_softmax(vocab_size):
    hidden, targets, head, mix = example(vocab_size)

    def ours(hidden, temperature, n_actions):
        logprobs, entropy = action_logprobs(
            hidden, targets, head, temperature=temperature, vocab_size=vocab_size, n_actions=n_actions, chunk=8
        )
        return jnp.sum(mix * logprobs), (logprobs, entropy)

    def theirs(hidden, temperature, n_actions):
        logprobs, entropy = naive(hidden, targets, head, temperature, vocab_size, n_actions)
        return jnp.sum(mix * logprobs), (logprobs, entropy)

    our_gradient = jax.jit(jax.grad(ours, has_aux=True))
    their_gradient = jax.jit(jax.grad(theirs, has_aux=True))
    without_gradient = jax.jit(ours)  # another program, which must say the same
    for n_actions in [0, 1, 8, 13, A]:
        for temperature in [0.6, 1.0, 1.7]:
            gradient, (logprobs, entropy) = our_gradient(hidden, temperature, n_actions)
            expected_gradient, (expected, expected_entropy) = their_gradient(hidden, temperature, n_actions)
            np.testing.assert_allclose(logprobs, expected, atol=1e-5, rtol=1e-5)
            np.testing.assert_allclose(entropy, expected_entropy, atol=1e-5)
            np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5, rtol=1e-5)
            assert not np.any(np.asarray(gradient)[n_actions:])
            assert logprobs.dtype == entropy.dtype == gradient.dtype == jnp.float32
            np.testing.assert_allclose(without_gradient(hidden, temperature, n_actions)[1][0], logprobs, rtol=1e-6)


def test_four_words_with_known_probabilities():
    # Hidden states are one-hot, so row i of the table is the distribution of action i.
    table = np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.97, 0.01, 0.01, 0.01]])
    head = jnp.asarray(np.log(table).T, jnp.float32)
    targets = jnp.array([3, 1, 2])
    logprobs, entropy = action_logprobs(jnp.eye(3), targets, head, temperature=1.0, vocab_size=4, n_actions=3)
    np.testing.assert_allclose(logprobs, np.log([0.4, 0.25, 0.01]), rtol=1e-6)
    np.testing.assert_allclose(entropy, -(table * np.log(table)).sum(1), rtol=1e-5)
    # Temperature 0.5 squares the probabilities: 0.16 / 0.3 for the first.
    sharper, _ = action_logprobs(jnp.eye(3), targets, head, temperature=0.5, vocab_size=4, n_actions=3)
    np.testing.assert_allclose(sharper[0], np.log(0.16 / 0.30), rtol=1e-5)


def test_ids_above_the_tokenizer_have_no_probability():
    hidden, targets, head, _ = example(vocab_size=43)
    loud = head.at[43:].set(100.0 * jnp.sign(hidden[0]))

    def total(hidden, head):
        return action_logprobs(hidden, targets, head, temperature=1.0, vocab_size=43, n_actions=A)[0].sum()

    for value, loud_value in zip(
        jax.tree.leaves(jax.value_and_grad(total)(hidden, head)),
        jax.tree.leaves(jax.value_and_grad(total)(hidden, loud)),
        strict=True,
    ):
        np.testing.assert_allclose(value, loud_value, rtol=1e-6)


def test_the_sampler_and_the_learner_mean_the_same_by_a_logprob():
    hidden, _, head, _ = example()
    for temperature in (0.7, 1.0):
        ids, sampled = choose(hidden @ head.T, jnp.linspace(0.02, 0.98, A), jnp.full(A, temperature), 43)
        scored, _ = action_logprobs(hidden, ids, head, temperature=temperature, vocab_size=43, n_actions=A)
        np.testing.assert_allclose(scored, sampled, atol=1e-5)


def test_extreme_logits_have_finite_gradients():
    hidden, targets, head, _ = example(vocab_size=43)

    def total(hidden):
        return action_logprobs(hidden, targets, 1e4 * head, temperature=0.1, vocab_size=43, n_actions=A)[0].sum()

    value, gradient = jax.value_and_grad(total)(hidden)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_what_stands_in_padding_slots_changes_nothing():
    hidden, targets, head, mix = example()

    def loss(hidden):
        return jnp.sum(
            mix * action_logprobs(hidden, targets, head, temperature=1.0, vocab_size=V, n_actions=10, chunk=4)[0]
        )

    poisoned = hidden.at[10:].set(jnp.nan)
    value, gradient = jax.value_and_grad(loss)(poisoned)
    expected, expected_gradient = jax.value_and_grad(loss)(hidden)
    assert value == expected
    np.testing.assert_array_equal(gradient, expected_gradient)


def test_the_head_is_frozen():
    hidden, targets, head, _ = example()
    gradient = jax.grad(
        lambda head: action_logprobs(hidden, targets, head, temperature=1.0, vocab_size=V, n_actions=A)[0].sum()
    )(head)
    assert not np.any(gradient)


def test_a_bfloat16_head_sums_in_float32_and_keeps_the_gradient_of_confident_tokens():
    hidden, targets, head, _ = example(dtype=jnp.bfloat16)
    hidden = head[targets]  # pointing at its own row, a target is all but certain
    expected, _ = naive(hidden, targets, head, 1.0, V, A)
    assert np.median(expected) > -0.05
    expected_gradient = jax.grad(lambda h: naive(h, targets, head, 1.0, V, A)[0].sum())(hidden.astype(jnp.float32))

    def total(hidden):
        logprobs, _ = action_logprobs(hidden, targets, head, temperature=1.0, vocab_size=V, n_actions=A)
        return logprobs.sum(), logprobs

    gradient, logprobs = jax.grad(total, has_aux=True)(hidden)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(logprobs, expected, atol=1e-5)
    sizes = np.linalg.norm(expected_gradient, axis=1)
    errors = np.linalg.norm(np.asarray(gradient, np.float32) - expected_gradient, axis=1)
    assert (errors <= 0.02 * sizes + 1e-5).all()


def test_the_number_of_actions_and_the_temperature_are_not_compiled_in():
    hidden, targets, head, _ = example()
    traces = []

    @jax.jit
    def score(n_actions, temperature):
        traces.append(1)
        return action_logprobs(hidden, targets, head, temperature=temperature, vocab_size=V, n_actions=n_actions)[0]

    for n_actions, temperature in [(3, 1.0), (A, 0.7), (0, 1.3)]:
        score(n_actions, temperature)
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_array_of_tokens_by_vocabulary_exists(dtype):
    actions, width, vocabulary, chunk = 2 * 8192, 64, 151_936, 128

    def loss(hidden, targets, head, n_actions):
        return action_logprobs(
            hidden, targets, head, temperature=1.0, vocab_size=vocabulary, n_actions=n_actions, chunk=chunk
        )[0].sum()

    compiled = (
        jax.jit(jax.grad(loss))
        .lower(
            jax.ShapeDtypeStruct((actions, width), dtype),
            jax.ShapeDtypeStruct((actions,), jnp.int32),
            jax.ShapeDtypeStruct((vocabulary, width), dtype),
            jax.ShapeDtypeStruct((), jnp.int32),
        )
        .compile()
    )
    one_chunk = chunk * vocabulary * 4
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4 * one_chunk  # all tokens would be 128 chunks
