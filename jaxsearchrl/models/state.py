"""What a forward pass attends to: the row itself (`Packed`), or the slots of the sampler's cache (`Slots`).

The decoder has one body; training, prefill, extension and decode differ only in the state that they pass. A state
offers `attend(layer, q, k, v) -> (out, state)`. Masks come from absolute positions throughout: a causal flag alone is
aligned to the top left, which is wrong when a cached prefix is extended.
"""

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxsearchrl.models.attention import attention
from jaxsearchrl.models.packed_attention import MASKED
from jaxsearchrl.models.products import rows_dot


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """Rows of several trajectories, no cache. positions [B, T]; segments [B, T], 0 for padding.

    A segment is contiguous in its row and its positions rise, so that index order is position order. Segment 1, if a
    row has one, comes first, and later segments see it too: it is the beginning that they share.
    """

    positions: jax.Array
    segments: jax.Array

    def attend(self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, "Packed"]:
        """q [B, T, N, H], k and v [B, T, K, H] -> [B, T, N, H]."""
        del layer
        return attention(q, k, v, self.segments, self.positions), self


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slots:
    """New tokens of some slots, beside what the slots already hold.

    keys, values: per layer [S, K, L, H]. rows [B]: the slot of each row. positions [B, T]: absolute position of each
    new token; padding has position L, which is dropped on write. blocks: how many blocks of `block` keys are read
    (traced), enough to cover every position in use; further blocks change no bit of the result. Rows may be successive
    pieces of one slot: all keys of a layer are written before any is read.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]
    rows: jax.Array
    positions: jax.Array
    blocks: jax.Array
    block: int = field(metadata={"static": True})
    all_slots: bool = field(metadata={"static": True})  # rows are 0 … S-1 in order: nothing is gathered

    def attend(self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, "Slots"]:
        """q [B, T, N, H], k and v [B, T, K, H] -> [B, T, N, H]; writes k and v into the layer's cache first."""
        at = (self.rows[:, None], slice(None), self.positions)
        keys = self.keys[layer].at[at].set(k.astype(self.keys[layer].dtype), mode="drop")
        values = self.values[layer].at[at].set(v.astype(self.values[layer].dtype), mode="drop")
        out = self._read(q, keys, values)
        return out, replace(self, keys=_put(self.keys, layer, keys), values=_put(self.values, layer, values))

    def _read(self, q: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        """Attention over the first `blocks` blocks; running softmax (Milakov & Gimelshein, 2018, arXiv:1805.02867)."""
        B, T, N, H = q.shape
        K = keys.shape[1]
        G = N // K
        q = (q * (1 / math.sqrt(H))).reshape(B, T, K, G, H).transpose(0, 2, 1, 3, 4).reshape(B, K, T * G, H)
        query_at = jnp.repeat(self.positions, G, axis=1)[:, None, :, None]  # [B, 1, T*G, 1]

        def body(j, carry):
            top, total, out = carry
            start = j * self.block
            k, v = self._block(keys, start), self._block(values, start)
            scores = rows_dot(q, k)
            key_at = (start + jnp.arange(self.block))[None, None, None, :]
            scores = jnp.where(key_at <= query_at, scores, MASKED)
            new_top = jnp.maximum(top, scores.max(-1))
            weights = jnp.exp(scores - new_top[..., None])
            shrink = jnp.exp(top - new_top)
            new = jnp.einsum("bktl,bklh->bkth", weights, v, preferred_element_type=jnp.float32)
            return new_top, total * shrink + weights.sum(-1), out * shrink[..., None] + new

        shape = (B, K, T * G)
        start = (
            jnp.full(shape, MASKED, jnp.float32),
            jnp.zeros(shape, jnp.float32),
            jnp.zeros((*shape, H), jnp.float32),
        )
        _, total, out = lax.fori_loop(0, self.blocks, body, start)
        out = out / total[..., None]
        return out.reshape(B, K, T, G, H).transpose(0, 2, 1, 3, 4).reshape(B, T, N, H)

    def _block(self, cache: jax.Array, start: jax.Array) -> jax.Array:
        """Keys or values [B, K, block, H] of the rows' slots."""
        if self.all_slots:
            return lax.dynamic_slice_in_dim(cache, start, self.block, axis=2)
        _, K, _, H = cache.shape
        pick = lambda row: lax.dynamic_slice(cache, (row, 0, start, 0), (1, K, self.block, H))[0]  # noqa: E731
        return jax.vmap(pick)(self.rows)


def empty_cache(
    layers: int, slots: int, kv_heads: int, capacity: int, head_dim: int, dtype: jnp.dtype
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Keys and values of all layers, each [S, K, L, H]."""
    shape = (slots, kv_heads, capacity, head_dim)
    keys, values = (tuple(jnp.zeros(shape, dtype) for _ in range(layers)) for _ in range(2))
    return keys, values


def _put(layers: tuple[jax.Array, ...], index: int, value: jax.Array) -> tuple[jax.Array, ...]:
    return (*layers[:index], value, *layers[index + 1 :])
