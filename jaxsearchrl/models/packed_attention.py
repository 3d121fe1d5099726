"""Attention over packed rows, by pairs of blocks: a block of queries and a block of keys that some of them see.

One loop runs over the pairs that the segments call for, so work grows with what is seen and not with T², and memory
with T: forward keeps a running softmax (Milakov & Gimelshein, 2018, arXiv:1805.02867), backward makes the weights of a
pair anew from the logarithm of their sum (Dao et al., 2022, arXiv:2205.14135, algorithm 4).
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

# On a CPU the fastest of 128 to 512, for rows of several episodes.
BLOCK = 256

# Scores under the mask are finite: softmax gradients of -inf are NaN.
MASKED = -1e30


def packed_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    """q [B, T, N, H], k and v [B, T, K, H], segments [B, T] -> [B, T, N, H] float32.

    A position sees those of its segment up to itself, and all of segment 1, with which a row may begin. A segment is
    contiguous in its row. What stands on padding (segment 0) has no meaning.
    """
    B, T, N, H = q.shape
    K = k.shape[2]
    G = N // K
    block = min(BLOCK, T)
    n = -(-T // block)
    q, k, v, segments = (
        jnp.pad(x, [(0, 0), (0, n * block - T), *[(0, 0)] * (x.ndim - 2)]) for x in (q, k, v, segments)
    )
    q = (q * (1 / math.sqrt(H))).reshape(B, n, block, K, G, H).transpose(1, 0, 3, 4, 2, 5)
    k, v = (x.reshape(B, n, block, K, H).transpose(1, 0, 3, 2, 4).reshape(n, B * K, block, H) for x in (k, v))
    out = _attend(q.reshape(n, B * K, G * block, H), k, v, segments.reshape(B, n, block).swapaxes(0, 1))
    return out.reshape(n, B, K, G, block, H).transpose(1, 0, 4, 2, 3, 5).reshape(B, n * block, N, H)[:, :T]


@jax.custom_vjp
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
    """q [n, B·K, G·block, H], k and v [n, B·K, block, H], segments [n, B, block] -> as q, in float32."""
    return _forward(q, k, v, segments)[0]


def _forward(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> tuple[jax.Array, tuple]:
    pairs, count = _pairs(segments)

    def body(step: jax.Array, carry: tuple) -> tuple:
        i, j = pairs[step]
        top, total, out = (x[i] for x in carry)
        scores = _scores(q, k, segments, i, j)
        new_top = jnp.maximum(top, scores.max(-1))
        weights, shrink = jnp.exp(scores - new_top[..., None]), jnp.exp(top - new_top)
        total = total * shrink + weights.sum(-1)
        out = out * shrink[..., None] + _product("btl,blh->bth", weights, v[j])
        return tuple(_put(x, i, new) for x, new in zip(carry, (new_top, total, out), strict=True))

    start = (
        jnp.full(q.shape[:-1], MASKED, jnp.float32),
        jnp.zeros(q.shape[:-1], jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    top, total, out = lax.fori_loop(0, count, body, start)
    out = out / total[..., None]
    return out, (q, k, v, segments, out, top + jnp.log(total))


def _backward(kept: tuple, out_grad: jax.Array) -> tuple:
    q, k, v, segments, out, log_total = kept
    pairs, count = _pairs(segments)
    mean = (out_grad * out).sum(-1)

    def body(step: jax.Array, carry: tuple) -> tuple:
        i, j = pairs[step]
        q_grad, k_grad, v_grad = carry
        weights = jnp.exp(_scores(q, k, segments, i, j) - log_total[i][..., None])
        change = weights * (_product("bth,blh->btl", out_grad[i], v[j]) - mean[i][..., None])
        return (
            _put(q_grad, i, q_grad[i] + _product("btl,blh->bth", change, k[j])),
            _put(k_grad, j, k_grad[j] + _product("btl,bth->blh", change, q[i])),
            _put(v_grad, j, v_grad[j] + _product("btl,bth->blh", weights, out_grad[i])),
        )

    start = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    grads = lax.fori_loop(0, count, body, start)
    return (*(grad.astype(x.dtype) for grad, x in zip(grads, (q, k, v), strict=True)), None)


_attend.defvjp(_forward, _backward)


def _pairs(segments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Blocks of queries and of keys (i, j) to visit, [n (n + 1) / 2, 2] int32, and how many of these count.

    Since segments are contiguous, one that is in both blocks of i > j ends block j and begins block i.
    """
    n = len(segments)
    first, last = segments[:, :, 0], segments[:, :, -1]
    same = (first[:, None] == last[None]) & (first[:, None] > 0)
    shared = (segments > 1).any(-1)[:, None] & (first == 1)[None]
    i, j = jnp.tril_indices(n)
    wanted = (i == j) | (same | shared).any(-1)[i, j]
    order = jnp.argsort(~wanted, stable=True)
    return jnp.stack([i, j], axis=1)[order].astype(jnp.int32), wanted.sum()


def _scores(q: jax.Array, k: jax.Array, segments: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """Scores of a pair [B·K, G·block, block], with the mask."""
    rows, block = segments.shape[1:]
    query, key = segments[i][:, :, None], segments[j][:, None, :]
    at = jnp.arange(block)
    causal = (i * block + at)[:, None] >= (j * block + at)[None, :]
    seen = causal & ((query == key) | ((key == 1) & (query > 1)))
    bias = jnp.where(seen, 0.0, MASKED).reshape(rows, 1, 1, block, block)
    scores = _product("bth,blh->btl", q[i], k[j])
    return (scores.reshape(rows, -1, q.shape[2] // block, block, block) + bias).reshape(scores.shape)


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _put(x: jax.Array, i: jax.Array, new: jax.Array) -> jax.Array:
    return lax.dynamic_update_index_in_dim(x, new, i, 0)
