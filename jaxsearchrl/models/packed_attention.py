"""Attention over packed rows, by pairs of blocks: a block of queries and a block of keys that some of them see.

One loop runs over the pairs that the segments and the window call for, so work grows with what is seen and not with T²,
and memory with T: forward keeps a running softmax (Milakov & Gimelshein, 2018, arXiv:1805.02867), backward makes the
weights of a pair anew from the logarithm of their sum (Dao et al., 2022, arXiv:2205.14135, algorithm 4).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# On a CPU the fastest of 128 to 512, for rows of several episodes.
BLOCK = 256

# Scores under the mask are finite: softmax gradients of -inf are NaN.
MASKED = -1e30


class Places(NamedTuple):
    """Where tokens stand: index in the row, segment and position, int32 of shapes that broadcast."""

    index: jax.Array
    segments: jax.Array
    positions: jax.Array


def visible(query: Places, key: Places, window: int | None) -> jax.Array:
    """Whether a query sees a key: its own segment up to itself and all of segment 1, at positions above p - window."""
    own, shared = query.segments == key.segments, (key.segments == 1) & (query.segments > 1)
    seen = (query.index >= key.index) & (own | shared)
    return seen if window is None else seen & (key.positions > query.positions - window)


def packed_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    positions: jax.Array,
    *,
    window: int | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """q [B, T, N, H], k and v [B, T, K, H], segments and positions [B, T] -> [B, T, N, H] float32.

    A token sees those of its segment up to itself, and all of segment 1, with which a row may begin. A segment is
    contiguous in its row and its positions rise by one; what stands on padding (segment 0) has no meaning, but is
    finite. window: of these a token sees itself and the window - 1 positions before it; at least 1. sinks [N]: a logit
    of each head, for a key that has no value (Agarwal et al., 2025, arXiv:2508.10925, section 2.2).
    """
    B, T, N, H = q.shape
    K = k.shape[2]
    G = N // K
    block = min(BLOCK, T)
    n = -(-T // block)
    q, k, v, segments, positions = (
        jnp.pad(x, [(0, 0), (0, n * block - T), *[(0, 0)] * (x.ndim - 2)]) for x in (q, k, v, segments, positions)
    )
    q = (q * (1 / math.sqrt(H))).reshape(B, n, block, K, G, H).transpose(1, 0, 3, 4, 2, 5)
    k, v = (x.reshape(B, n, block, K, H).transpose(1, 0, 3, 2, 4).reshape(n, B * K, block, H) for x in (k, v))
    if sinks is not None:
        sinks = sinks.astype(jnp.float32).reshape(K, G, 1)
        sinks = jnp.broadcast_to(sinks, (B, K, G, block)).reshape(B * K, G * block)
    segments, positions = (x.reshape(B, n, block).swapaxes(0, 1) for x in (segments, positions))
    places = Places(jnp.arange(n * block).reshape(n, 1, block), segments, positions)
    out = _attend(q.reshape(n, B * K, G * block, H), k, v, sinks, places, window)
    return out.reshape(n, B, K, G, block, H).transpose(1, 0, 4, 2, 3, 5).reshape(B, n * block, N, H)[:, :T]


def _value(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, places: Places, window: int | None
) -> jax.Array:
    """q [n, B·K, G·block, H], k, v [n, B·K, block, H], sinks [B·K, G·block], places [n, B, block] -> as q, float32."""
    return _forward(q, k, v, sinks, places, window)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, sinks: jax.Array | None, places: Places, window: int | None
) -> tuple[jax.Array, tuple]:
    pairs, count = _pairs(places, window)

    def body(step: jax.Array, carry: tuple) -> tuple:
        i, j = pairs[step]
        top, total, out = (x[i] for x in carry)
        scores = _scores(q, k, places, window, i, j)
        new_top = jnp.maximum(top, scores.max(-1))
        weights, shrink = jnp.exp(scores - new_top[..., None]), jnp.exp(top - new_top)
        total = total * shrink + weights.sum(-1)
        out = out * shrink[..., None] + _product("btl,blh->bth", weights, v[j])
        return tuple(_put(x, i, new) for x, new in zip(carry, (new_top, total, out), strict=True))

    top, total = (MASKED, 0.0) if sinks is None else (sinks, 1.0)  # a sink is the first key that is seen
    start = (
        jnp.broadcast_to(jnp.asarray(top, jnp.float32), q.shape[:-1]),
        jnp.full(q.shape[:-1], total, jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    top, total, out = lax.fori_loop(0, count, body, start)
    out = out / total[..., None]
    return out, (q, k, v, sinks, places, out, top + jnp.log(total))


def _backward(window: int | None, kept: tuple, out_grad: jax.Array) -> tuple:
    q, k, v, sinks, places, out, log_total = kept
    pairs, count = _pairs(places, window)
    mean = (out_grad * out).sum(-1)

    def body(step: jax.Array, carry: tuple) -> tuple:
        i, j = pairs[step]
        q_grad, k_grad, v_grad = carry
        weights = jnp.exp(_scores(q, k, places, window, i, j) - log_total[i][..., None])
        change = weights * (_product("bth,blh->btl", out_grad[i], v[j]) - mean[i][..., None])
        return (
            _put(q_grad, i, q_grad[i] + _product("btl,blh->bth", change, k[j])),
            _put(k_grad, j, k_grad[j] + _product("btl,bth->blh", change, q[i])),
            _put(v_grad, j, v_grad[j] + _product("btl,bth->blh", weights, out_grad[i])),
        )

    start = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    grads = lax.fori_loop(0, count, body, start)
    # A sink's value is zero, so that its score changes the output by its weight times minus the mean.
    sinks_grad = None if sinks is None else -(jnp.exp(sinks - log_total) * mean).sum(0)
    return (*(grad.astype(x.dtype) for grad, x in zip(grads, (q, k, v), strict=True)), sinks_grad, None)


_attend = jax.custom_vjp(_value, nondiff_argnums=(5,))
_attend.defvjp(_forward, _backward)


def _pairs(places: Places, window: int | None) -> tuple[jax.Array, jax.Array]:
    """Blocks of queries and of keys (i, j) to visit, [n (n + 1) / 2, 2] int32, and how many of these count.

    Since segments are contiguous, one that is in both blocks of i > j ends block j and begins block i. The window is
    asked about the nearest query and key of the two.
    """
    _, segments, positions = places
    n = len(segments)
    first, last, later = segments[:, :, 0], segments[:, :, -1], segments > 1
    same = (first[:, None] == last[None]) & (first[:, None] > 0)
    shared = later.any(-1)[:, None] & (first == 1)[None]
    if window is not None:
        same &= positions[None, :, :, -1] > positions[:, None, :, 0] - window
        earliest = jnp.where(later, positions, jnp.iinfo(jnp.int32).max).min(-1)
        latest = jnp.where(segments == 1, positions, -1).max(-1)
        shared &= latest[None] > earliest[:, None] - window
    i, j = jnp.tril_indices(n)
    wanted = (i == j) | (same | shared).any(-1)[i, j]
    order = jnp.argsort(~wanted, stable=True)
    return jnp.stack([i, j], axis=1)[order].astype(jnp.int32), wanted.sum()


def _scores(q: jax.Array, k: jax.Array, places: Places, window: int | None, i: jax.Array, j: jax.Array) -> jax.Array:
    """Scores of a pair [B·K, G·block, block], with the mask."""
    rows, block = places.segments.shape[1:]
    seen = visible(Places(*(x[i][:, :, None] for x in places)), Places(*(x[j][:, None, :] for x in places)), window)
    bias = jnp.where(seen, 0.0, MASKED).reshape(rows, 1, 1, block, block)
    scores = _product("bth,blh->btl", q[i], k[j])
    return (scores.reshape(rows, -1, q.shape[2] // block, block, block) + bias).reshape(scores.shape)


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _put(x: jax.Array, i: jax.Array, new: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(x, new, i, 0)
