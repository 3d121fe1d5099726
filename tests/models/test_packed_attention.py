"""Attention by pairs of blocks against attention written out, its gradient, and what it costs."""

import functools
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
    (700, [([100, 120, 80], 1), ([300], 2)]),
    (700, [([256, 128, 128], 1), ([30, 20, 450], 2)]),
    (700, [([10, 300, 5, 40], 1), ([390], 1)]),
    (40, [([7, 9], 1), ([3, 2, 1, 20], 2)]),
    (258, [([1, 256, 1], 2), ([257], 2)]),
]


# The same, with windows shorter than a segment and than the shared beginning, equal to one, and longer than all.
WINDOWS = [
    (700, [([100, 120, 80], 1), ([300], 2)], 1),
    (700, [([250, 6, 300], 1), ([40, 520], 2)], 90),
    (700, [([90, 300, 5, 40], 1), ([390], 1)], 90),
    (700, [([250, 6, 300], 1), ([40, 520], 2)], 280),
    (40, [([7, 9], 1), ([3, 2, 1, 20], 2)], 40),
]


def layout(T, rows):
    """Segments and positions [B, T] of rows."""
    segments, positions = np.zeros((2, len(rows), T), np.int32)
    for b, (lengths, number) in enumerate(rows):
        starts = [lengths[0] * (number == 1 and i > 0) for i in range(len(lengths))]
        own = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
        segments[b, : len(own)] = np.repeat(np.arange(number, number + len(lengths)), lengths)
        positions[b, : len(own)] = own
    return segments, positions


def written_out(q, k, v, segments, positions, window=None, sinks=None):
    """With all [T, T] scores at once; a sink is one more key, whose value is zero."""
    B, T, N, H = q.shape
    k, v = (jnp.repeat(x, N // k.shape[2], axis=2) for x in (k, v))
    query, key = segments[:, :, None], segments[:, None, :]
    seen = np.tril(np.ones((T, T), bool)) & ((query == key) | ((key == 1) & (query > 1)))
    if window is not None:
        seen = seen & (positions[:, :, None] - positions[:, None, :] < window)
    scores = jnp.einsum("btnh,blnh->bntl", q, k) / math.sqrt(H)
    scores = jnp.where(seen[:, None], scores, -jnp.inf)
    if sinks is not None:
        scores = jnp.concatenate([scores, jnp.broadcast_to(sinks[:, None, None], (B, N, T, 1))], axis=-1)
    return jnp.einsum("bntl,blnh->btnh", jax.nn.softmax(scores)[..., :T], v)


def inputs(T, rows, heads=(6, 2), H=8, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=(rows, T, n, H)), jnp.float32) for n in (heads[0], heads[1], heads[1])]


def compare(T, rows, window=None, sinks=None, heads=(6, 2)):
    """Values and the gradients of q, k, v and the sinks."""
    places = layout(T, rows)
    arguments = (*inputs(T, len(rows), heads), sinks)
    results = [_pull(function, window, places, arguments) for function in (packed_attention, written_out)]
    chex.assert_trees_all_close(*results, atol=5e-5)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pull(function, window, places, arguments):
    real = (places[0] > 0)[..., None, None]  # nothing reads what stands on padding
    direction = jax.random.normal(jax.random.key(1), arguments[0].shape) * real
    out, vjp = jax.vjp(lambda q, k, v, sinks: function(q, k, v, *places, window=window, sinks=sinks), *arguments)
    return out * real, vjp(direction)


@pytest.mark.parametrize(("T", "rows"), LAYOUTS)
def test_values_and_gradients_are_those_of_attention_written_out(T, rows):
    compare(T, rows)


@pytest.mark.parametrize(("T", "rows", "window"), WINDOWS)
def test_a_window_alone(T, rows, window):
    compare(T, rows, window)


@pytest.mark.parametrize(("T", "rows", "window"), [*WINDOWS[1:3], (*LAYOUTS[0], None)])
def test_sinks_with_and_without_a_window(T, rows, window):
    compare(T, rows, window, jnp.linspace(-2, 3, 6))


@pytest.mark.parametrize("heads", [(5, 5), (21, 7)])
def test_sinks_belong_to_their_query_heads(heads):
    compare(300, [([100, 120, 80], 1), ([30, 50], 2)], 60, jnp.linspace(-4, 4, heads[0]), heads)


def test_a_sink_takes_its_share_of_one_key():
    """Worked by hand: a token that sees itself with score 0, beside a sink of log 3, keeps a quarter of its value."""
    q, v = jnp.zeros((1, 1, 1, 2)), jnp.asarray([4.0, 8.0]).reshape(1, 1, 1, 2)
    place = jnp.asarray([[2]]), jnp.asarray([[0]])
    attend = lambda sink: packed_attention(q, q, v, *place, sinks=sink)  # noqa: E731
    out, vjp = jax.vjp(attend, jnp.log(jnp.asarray([3.0])))
    chex.assert_trees_all_close(out.ravel(), jnp.asarray([1.0, 2.0]), rtol=1e-6)
    chex.assert_trees_all_close(vjp(jnp.ones_like(out))[0], jnp.asarray([-0.75 * 3.0]), rtol=1e-6)


def test_a_window_is_counted_in_positions_and_not_in_the_row():
    """Two trajectories with one beginning read the same wherever they stand: as in a row of their own."""
    q, k, v = inputs(300, 1)
    segments, positions = layout(300, [([100, 120, 80], 1)])
    packed = packed_attention(q, k, v, segments, positions, window=50)
    alone = np.r_[:100, 220:300]  # the second trajectory
    at = jnp.arange(180)[None]
    out = packed_attention(q[:, alone], k[:, alone], v[:, alone], jnp.ones_like(at), at, window=50)
    chex.assert_trees_all_close(out, packed[:, alone], atol=1e-6)


def test_a_window_hides_the_shared_beginning_from_all_that_is_further_on():
    """Nothing of the beginning reaches, or is pulled by, tokens a window after it."""
    q, k, v = inputs(400, 1)
    places = layout(400, [([150, 120, 130], 1)])
    far = jnp.asarray(places[1] >= 150 + 40)[..., None, None]
    run = lambda k, v: packed_attention(q, k, v, *places, window=40) * far  # noqa: E731
    out, vjp = jax.vjp(run, k, v)
    chex.assert_trees_all_equal(out, run(k.at[:, :150].set(7.0), v.at[:, :150].set(-7.0)))
    for grad in vjp(jnp.ones_like(out)):
        assert not grad[:, :150].any()
        assert grad[:, 150:].any()


@pytest.mark.parametrize(("window", "sinks"), [(None, None), (3, jnp.asarray([-1e4, 0, 1e4, -jnp.inf, 50, 1]))])
def test_padding_is_finite_in_values_and_gradients(window, sinks):
    places = layout(600, [([20, 30], 1), ([1], 2)])
    run = lambda q, k, v: packed_attention(q, k, v, *places, window=window, sinks=sinks)  # noqa: E731
    out, vjp = jax.vjp(run, *inputs(600, 2))
    chex.assert_tree_all_finite((out, vjp(jnp.ones_like(out))))


def test_large_scores_stay_finite():
    """The running maximum holds them, and keys under the mask weigh nothing even when they come first."""
    places = layout(300, [([150, 150], 2)])
    q, k, v = inputs(300, 1)
    for window in (None, 20):
        out = packed_attention(30 * q, 30 * k, v, *places, window=window)
        chex.assert_trees_all_close(out, written_out(30 * q, 30 * k, v, *places, window), atol=1e-3)


def visited(layout, window=None):
    """Pairs of blocks that are worked on."""
    B, T = layout[0].shape
    segments, positions = (jnp.asarray(x).reshape(B, -1, attention.BLOCK).swapaxes(0, 1) for x in layout)
    index = jnp.arange(T).reshape(-1, 1, attention.BLOCK)
    pairs, count = attention._pairs(attention.Places(index, segments, positions), window)
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


def test_blocks_that_the_window_hides_are_left_out():
    b = attention.BLOCK
    diagonal = {(i, i) for i in range(4)}
    below = {(1, 0), (2, 1), (3, 2)}
    whole = layout(4 * b, [([4 * b], 2)])
    assert visited(whole, 1) == diagonal
    assert visited(whole, 2) == visited(whole, b + 1) == diagonal | below
    assert visited(whole, b + 2) == diagonal | below | {(2, 0), (3, 1)}
    assert visited(whole, 4 * b) == visited(whole)
    # By position each of six short segments follows the beginning at once, wherever in the row it stands.
    shared = layout(4 * b, [([b] + [b // 2] * 6, 1)])
    assert visited(shared, 1) == diagonal
    assert visited(shared, 2) == diagonal | {(1, 0), (2, 0), (3, 0)}
    # Of one long segment only the first block does.
    long = layout(4 * b, [([b, 3 * b], 1)])
    assert visited(long, b + 1) == diagonal | below
    assert visited(long, b + 2) == diagonal | below | {(2, 0), (3, 1)}
    # What any row needs: the pairs of both.
    both = layout(4 * b, [([b] * 4, 2), ([b, 3 * b], 1)])
    assert visited(both, 2) == visited(long, 2) == diagonal | below


@pytest.mark.parametrize("window", [1, 2, 100, 257, 300, 511, 2000])
def test_a_pair_is_visited_when_some_query_of_it_sees_some_key(window):
    b, rng = attention.BLOCK, np.random.default_rng(window)
    for number in (1, 2):
        cuts = np.sort(rng.choice(np.arange(1, 5 * b), 4, replace=False))
        segments, positions = layout(5 * b, [(np.diff([0, *cuts]).tolist(), number)])
        real = segments[0] > 0
        index = np.arange(5 * b)
        query, key = (
            attention.Places(*(x.reshape(shape) for x in (index, segments, positions))) for shape in ((-1, 1), (1, -1))
        )
        seen = np.asarray(attention.visible(query, key, window)) & real[:, None]
        wanted = seen.reshape(5, b, 5, b).any((1, 3)) | np.eye(5, dtype=bool)
        assert visited((segments, positions), window) == set(
            zip(*map(np.ndarray.tolist, wanted.nonzero()), strict=True)
        )


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporary(T):
        places = jnp.full((1, T), 2, jnp.int32), jnp.arange(T)[None]
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs(8, 1, heads=(4, 4), H=16)]
        shapes = [jax.ShapeDtypeStruct((1, T, *shape.shape[2:]), shape.dtype) for shape in shapes]
        grad = jax.grad(lambda q, k, v: packed_attention(q, k, v, *places).sum(), argnums=(0, 1, 2))
        return jax.jit(grad).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    assert temporary(4096) < 2.2 * temporary(2048)
    assert temporary(4096) < 4 * 4096 * 4096 * 4 / 8  # far below the scores of four heads
