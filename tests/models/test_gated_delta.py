"""The gated delta rule in chunks against the rule written out token by token."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.models.gated_delta import CHUNK, gated_delta

# Lengths of the segments of two rows; the number of the first segment (1 is shared); the rest is padding.
LAYOUTS = [
    (40, [([7, 9, 20], 1), ([3, 2, 1, 20], 2)]),
    (2 * CHUNK, [([CHUNK, 1, CHUNK - 1], 1), ([2 * CHUNK], 1), ([70, 6, 30], 1), ([64, 64], 2)]),
    (200, [([1, 150, 1, 2], 1), ([30, 20, 140, 5], 2), ([129], 1)]),
    (1094, [([934, 100, 60], 1), ([1033], 1), ([500, 540], 2)]),
]


def layout(T, rows):
    segments = np.zeros((len(rows), T), np.int32)
    for row, (lengths, number) in zip(segments, rows, strict=True):
        numbers = np.repeat(np.arange(number, number + len(lengths)), lengths)
        row[: len(numbers)] = numbers
    return segments


def inputs(T, rows, seed=0, heads=3, Dk=5, Dv=4):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    k = normal(rows, T, heads, Dk)
    g, beta = -jnp.exp(normal(rows, T, heads) - 2), jax.nn.sigmoid(normal(rows, T, heads))
    unit = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    return normal(rows, T, heads, Dk), unit, normal(rows, T, heads, Dv), g, beta


def written_out(q, k, v, g, beta, segments, memory):
    """Token by token; each segment after the first starts from the end of segment 1."""
    first = np.diff(segments, prepend=0) != 0

    def step(carry, token):
        shared, now = carry
        q, k, v, g, beta, segment, first = token
        now = jnp.where(first & (segment > 1), shared, now) * jnp.exp(g)[:, None, None]
        new = beta[:, None] * (v - jnp.einsum("hkv,hk->hv", now, k))
        now = now + k[:, :, None] * new[:, None]
        shared = jnp.where(segment == 1, now, shared)
        return (shared, now), jnp.where(segment > 0, jnp.einsum("hkv,hk->hv", now, q), 0.0)

    def row(memory, *tokens):
        (shared, _), out = jax.lax.scan(step, (memory, memory), tokens)
        return out, shared

    return jax.vmap(row)(memory, q, k, v, g, beta, segments, first)


@pytest.mark.parametrize(("T", "rows"), LAYOUTS)
def test_values_and_gradients_are_those_of_the_rule_written_out(T, rows):
    segments = layout(T, rows)
    arrays = inputs(T, len(rows))
    memory = jnp.asarray(np.random.default_rng(1).normal(size=(len(rows), 3, 5, 4)), jnp.float32)
    real = jnp.asarray(segments > 0)[..., None, None]
    direction = jax.random.normal(jax.random.key(1), arrays[2].shape) * real

    def pull(function):
        out, vjp = jax.vjp(lambda *arrays: function(*arrays, segments, memory)[0] * real, *arrays)
        return out, vjp(direction)

    ours = jax.jit(lambda: pull(lambda *a: gated_delta(*a, packed=True)))()
    chex.assert_trees_all_close(ours, jax.jit(lambda: pull(written_out))(), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("T", "used"), [(1, 1), (9, 9), (80, 80), (80, 30), (70, 1)])
def test_a_memory_goes_on_and_padding_leaves_it_alone(T, used):
    arrays = inputs(T, 2)
    segments = layout(T, [([used], 1), ([used], 1)])
    memory = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 5, 4)), jnp.float32)
    out, end = gated_delta(*arrays, segments, memory, packed=False)
    expected, expected_end = written_out(*arrays, segments, memory)
    chex.assert_trees_all_close((out[:, :used], end), (expected[:, :used], expected_end), atol=1e-5)
    assert np.isfinite(out).all()


def test_a_full_overwrite_and_a_full_decay():
    """beta 1 makes what is read at a key the new value; a decay to zero forgets the rest."""
    k = jnp.asarray([[[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[0.0, 1.0]]]])
    v = jnp.asarray([[[[2.0]], [[3.0]], [[5.0]], [[7.0]]]])
    g = jnp.asarray([[[0.0], [0.0], [0.0], [-1e9]]])
    q = jnp.asarray([[[[1.0, 1.0]]]] * 1).repeat(4, axis=1)
    out, end = gated_delta(q, k, v, g, jnp.ones((1, 4, 1)), jnp.ones((1, 4), int), jnp.zeros((1, 1, 2, 1)), packed=True)
    assert out[0, :, 0, 0].tolist() == [2.0, 5.0, 8.0, 7.0]
    assert end[0, 0, :, 0].tolist() == [0.0, 7.0]
