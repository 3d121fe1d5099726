"""Attention by pairs of blocks against attention written out, its gradient, and what it costs."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.models import packed_attention as attention
from jaxsearchrl.models.packed_attention import packed_attention

# Lengths of the segments of two rows; the number of the first segment (1 is shared); the rest is padding.
LAYOUTS = [
    (700, [([250, 6, 300, 90], 1), ([40, 600], 2)]),
    (300, [([100, 120, 80], 1), ([300], 2)]),
    (512, [([256, 128, 128], 1), ([30, 20, 450], 2)]),
    (400, [([10, 300, 5, 40], 1), ([390], 1)]),
    (40, [([7, 9], 1), ([3, 2, 1, 20], 2)]),
    (258, [([1, 256, 1], 2), ([257], 2)]),
]


def layout(T, rows):
    segments = np.zeros((len(rows), T), np.int32)
    for row, (lengths, number) in zip(segments, rows, strict=True):
        numbers = np.repeat(np.arange(number, number + len(lengths)), lengths)
        row[: len(numbers)] = numbers
    return segments


def written_out(q, k, v, segments):
    """With all [T, T] scores at once."""
    T, G = q.shape[1], q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, G, axis=2) for x in (k, v))
    query, key = segments[:, :, None], segments[:, None, :]
    seen = np.tril(np.ones((T, T), bool)) & ((query == key) | ((key == 1) & (query > 1)))
    scores = jnp.einsum("btnh,blnh->bntl", q, k) / math.sqrt(q.shape[-1])
    return jnp.einsum("bntl,blnh->btnh", jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf)), v)


def inputs(T, rows, heads=(6, 2), H=8, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=(rows, T, n, H)), jnp.float32) for n in (heads[0], heads[1], heads[1])]


@pytest.mark.parametrize(("T", "rows"), LAYOUTS)
def test_values_and_gradients_are_those_of_attention_written_out(T, rows):
    segments = layout(T, rows)
    qkv = inputs(T, len(rows))
    real = jnp.asarray(segments > 0)[..., None, None]  # nothing reads what stands on padding
    direction = jax.random.normal(jax.random.key(1), qkv[0].shape) * real

    def pull(function):
        out, vjp = jax.vjp(lambda q, k, v: function(q, k, v, segments), *qkv)
        return out * real, vjp(direction)

    chex.assert_trees_all_close(jax.jit(pull, static_argnums=0)(packed_attention), pull(written_out), atol=2e-5)


def test_large_scores_stay_finite():
    """The running maximum holds them, and keys under the mask weigh nothing even when they come first."""
    segments = layout(300, [([150, 150], 2)])
    q, k, v = inputs(300, 1)
    out = packed_attention(100 * q, 100 * k, v, segments)
    chex.assert_trees_all_close(out, written_out(100 * q, 100 * k, v, segments), atol=1e-4)


def visited(segments):
    """Pairs of blocks that are worked on."""
    T = segments.shape[1]
    blocks = jnp.asarray(segments).reshape(len(segments), T // attention.BLOCK, attention.BLOCK).swapaxes(0, 1)
    pairs, count = attention._pairs(blocks)
    return {tuple(pair) for pair in np.asarray(pairs[: int(count)]).tolist()}


def test_only_blocks_that_see_each_other_are_worked_on():
    b = attention.BLOCK
    diagonal = {(i, i) for i in range(4)}
    assert visited(layout(4 * b, [([b] * 4, 2)])) == diagonal
    assert visited(layout(4 * b, [([4 * b], 2)])) == {(i, j) for i in range(4) for j in range(i + 1)}
    assert visited(layout(4 * b, [([b - 20, 20, 3 * b], 2)])) == diagonal | {(2, 1), (3, 1), (3, 2)}
    shared = diagonal | {(1, 0), (2, 0), (3, 0)}
    assert visited(layout(4 * b, [([b] * 4, 1)])) == shared
    assert visited(layout(4 * b, [([b] * 4, 2), ([b] * 4, 1)])) == shared  # what any row needs
    assert visited(layout(4 * b, [([b], 2)])) == diagonal  # padding is left alone


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporary(T):
        segments = jnp.full((1, T), 2, jnp.int32)
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs(8, 1, heads=(4, 4), H=16)]
        shapes = [jax.ShapeDtypeStruct((1, T, *shape.shape[2:]), shape.dtype) for shape in shapes]
        grad = jax.grad(lambda q, k, v: packed_attention(q, k, v, segments).sum(), argnums=(0, 1, 2))
        return jax.jit(grad).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    assert temporary(4096) < 2.2 * temporary(2048)
    assert temporary(4096) < 4 * 4096 * 4096 * 4 / 8  # far below the scores of four heads
