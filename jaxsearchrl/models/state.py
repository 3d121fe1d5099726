"""What a forward pass builds on: the rows themselves (`Packed`), or the slots of the sampler's cache (`Slots`).

The decoder has one body; training, prefill, extension and decode differ only in the state that they pass. A state
offers `attend` to layers with attention, `convolve` and `recur` to those with a recurrent state, and `routed` to those
with experts. Masks come from absolute positions throughout: a causal flag alone is aligned to the top left, which is
wrong when a cached prefix is extended.
"""

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.attention import attention
from jaxsearchrl.models.gated_delta import gated_delta
from jaxsearchrl.models.packed_attention import MASKED
from jaxsearchrl.models.products import rows_dot
from jaxsearchrl.models.routes import routed_on


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """Rows of several trajectories, no cache. positions [B, T]; segments [B, T], 0 for padding.

    A segment is contiguous in its row and its positions rise, so that index order is position order. Segment 1, if a
    row has one, comes first, and later segments go on from it: it is the beginning that they share. routes [B, T]:
    uint32, over the layers so far (see `routes.py`), or None where nobody asks. mesh: on which they lie, if on one.
    """

    positions: jax.Array
    segments: jax.Array
    routes: jax.Array | None = None
    mesh: Mesh | None = field(default=None, metadata={"static": True})

    def attend(
        self,
        layer: int,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        window: int | None = None,
        sinks: jax.Array | None = None,
    ) -> tuple[jax.Array, "Packed"]:
        """q [B, T, N, H], k and v [B, T, K, H], sinks [N] -> [B, T, N, H]; for window and sinks see `Architecture`."""
        del layer
        out = attention(q, k, v, self.segments, self.positions, mesh=self.mesh, window=window, sinks=sinks)
        return out, self

    def convolve(self, layer: int, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, "Packed"]:
        """x [B, T, D], kernel [D, n]: each token's and the n - 1 inputs before it -> [B, T, D]."""
        del layer
        T, n = x.shape[1], kernel.shape[1]
        padded = jnp.pad(x, [(0, 0), (1, 0), (0, 0)])  # a zero, for what is before the first token
        index = jnp.arange(T)
        out = x * kernel[:, -1]
        for back in range(1, n):
            near = jnp.pad(self.segments, [(0, 0), (back, 0)])[:, :T] == self.segments
            # Before its own first token a segment goes on in the shared beginning, where index is position.
            at = jnp.where(near, index - back, self.positions - back)
            at = jnp.where(near & (index < back), -1, at)
            out = out + jnp.take_along_axis(padded, jnp.maximum(at + 1, 0)[..., None], axis=1) * kernel[:, -1 - back]
        return out, self

    def recur(
        self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array
    ) -> tuple[jax.Array, "Packed"]:
        """As `gated_delta`, from an empty memory."""
        del layer
        memory = jnp.zeros((q.shape[0], q.shape[2], q.shape[3], v.shape[3]), jnp.float32)
        return gated_delta(q, k, v, g, beta, self.segments, memory, packed=True)[0], self

    def routed(self, layer: int, ids: jax.Array) -> "Packed":
        """Takes in which experts the tokens were given, ids [B, T, chosen]."""
        del layer
        return self if self.routes is None else replace(self, routes=routed_on(self.routes, ids))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValues:
    """What slots keep for a layer with attention: keys and values, [S, K, L * H] each.

    One axis for positions and what a head has for each: a TPU would pad heads of less than 128 in an axis of their own,
    and copy the whole cache before and after it writes. A layer with a window keeps as many positions as it needs,
    position p at p modulo L.
    """

    keys: jax.Array
    values: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recurrent:
    """What slots keep for a layer with a recurrent state: last inputs [S, n - 1, D] of its convolution, and a memory.

    memory [S, heads, Dk, Dv]. Float32 both: errors would go from token to token.
    """

    inputs: jax.Array
    memory: jax.Array


LayerCache = KeyValues | Recurrent
"""What slots keep for one layer."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slots:
    """New tokens of some slots, beside what the slots already hold.

    layers: of each layer. rows [B]: the slot of each row. positions [B, T]: absolute position of each new token;
    padding, at the end of a row, has position `capacity` and is dropped on write. blocks: how many blocks of `block`
    keys are read (traced), enough to cover every position in use; further blocks change no bit of the result. Rows may
    be successive pieces of one slot (a layer's keys are all written before any is read), unless the model `is_bound`.
    routes: as in `Packed`. load [layers, E] int32: tokens that each expert was given so far, padding left out. Both are
    None where nobody asks.
    """

    layers: tuple[LayerCache, ...]
    rows: jax.Array
    positions: jax.Array
    blocks: jax.Array
    capacity: int = field(metadata={"static": True})
    block: int = field(metadata={"static": True})
    all_slots: bool = field(metadata={"static": True})  # rows are 0 … S-1 in order: nothing is gathered
    routes: jax.Array | None = None
    load: jax.Array | None = None

    @property
    def real(self) -> jax.Array:
        """Which tokens are no padding, [B, T]."""
        return self.positions < self.capacity

    def attend(
        self,
        layer: int,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        window: int | None = None,
        sinks: jax.Array | None = None,
    ) -> tuple[jax.Array, "Slots"]:
        """As `Packed.attend`; writes k and v into the layer's cache first."""
        cache = self.layers[layer]
        assert isinstance(cache, KeyValues)
        keys, values = self._written(cache.keys, k), self._written(cache.values, v)
        return self._read(q, keys, values, window, sinks), self._with(layer, KeyValues(keys, values))

    def convolve(self, layer: int, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, "Slots"]:
        """As `Packed.convolve`, going on from the slots' last inputs, of which new ones are kept."""
        cache = self.layers[layer]
        assert isinstance(cache, Recurrent)
        T, n = x.shape[1], kernel.shape[1]
        inputs = jnp.concatenate([self._so_far(cache.inputs), x], axis=1)
        out = sum(inputs[:, i : i + T] * kernel[:, i] for i in range(n))
        lengths = self.real.sum(-1)
        last = jax.vmap(lambda row, start: lax.dynamic_slice_in_dim(row, start, n - 1))(inputs, lengths)
        return jnp.asarray(out), self._with(layer, replace(cache, inputs=self._kept(cache.inputs, last)))

    def recur(
        self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array
    ) -> tuple[jax.Array, "Slots"]:
        """As `gated_delta`, from the slots' memories, which go on."""
        cache = self.layers[layer]
        assert isinstance(cache, Recurrent)
        segments = self.real.astype(jnp.int32)
        out, memory = gated_delta(q, k, v, g, beta, segments, self._so_far(cache.memory), packed=False)
        return out, self._with(layer, replace(cache, memory=self._kept(cache.memory, memory)))

    def routed(self, layer: int, ids: jax.Array) -> "Slots":
        """As `Packed.routed`."""
        routes, load = self.routes, self.load
        if routes is not None:
            routes = routed_on(routes, ids)
        if load is not None:
            load = load.at[layer, jnp.where(self.real[..., None], ids, load.shape[1])].add(1, mode="drop")
        return replace(self, routes=routes, load=load)

    def _read(
        self, q: jax.Array, keys: jax.Array, values: jax.Array, window: int | None, sinks: jax.Array | None
    ) -> jax.Array:
        """Attention over the first `blocks` blocks; running softmax (Milakov & Gimelshein, 2018, arXiv:1805.02867)."""
        B, T, N, H = q.shape
        K, L = keys.shape[1], keys.shape[2] // H
        G = N // K
        last = jnp.where(self.real, self.positions, -1).max(-1)[:, None, None, None]
        q = (q * (1 / math.sqrt(H))).reshape(B, T, K, G, H).transpose(0, 2, 1, 3, 4).reshape(B, K, T * G, H)
        query_at = jnp.repeat(self.positions, G, axis=1)[:, None, :, None]  # [B, 1, T*G, 1]

        def body(j, carry):
            top, total, out = carry
            start = j * self.block
            k, v = self._block(keys, start, H), self._block(values, start, H)
            scores = rows_dot(q, k)
            key_at = (start + jnp.arange(self.block))[None, None, None, :]
            seen = key_at <= query_at
            if window is not None:
                key_at = last - (last - key_at) % L  # the latest position that is kept at this place
                seen = (key_at <= query_at) & (key_at > query_at - window) & (key_at >= 0)
            scores = jnp.where(seen, scores, MASKED)
            new_top = jnp.maximum(top, scores.max(-1))
            weights = jnp.exp(scores - new_top[..., None])
            shrink = jnp.exp(top - new_top)
            new = jnp.einsum("bktl,bklh->bkth", weights, v, preferred_element_type=jnp.float32)
            return new_top, total * shrink + weights.sum(-1), out * shrink[..., None] + new

        shape = (B, K, T * G)
        if sinks is None:
            top, total = jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32)
        else:  # as if it had been read first
            top = jnp.broadcast_to(sinks.reshape(K, 1, G), (B, K, T, G)).reshape(shape)
            total = jnp.ones(shape, jnp.float32)
        start = (top, total, jnp.zeros((*shape, H), jnp.float32))
        _, total, out = lax.fori_loop(0, jnp.minimum(self.blocks, L // self.block), body, start)
        out = out / total[..., None]
        return out.reshape(B, K, T, G, H).transpose(0, 2, 1, 3, 4).reshape(B, T, N, H)

    def _written(self, cache: jax.Array, new: jax.Array) -> jax.Array:
        """Keys or values [S, K, L * H] with new ones [B, T, K, H]; padding is dropped."""
        H = new.shape[3]
        L = cache.shape[2] // H
        at = jnp.where(self.real, self.positions % L, L) * H
        places = jnp.stack(jnp.broadcast_arrays(self.rows[:, None], at), axis=-1)  # slot and offset of each [K, H]
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=(2, 3), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 2)
        )
        return lax.scatter(cache, places, new.astype(cache.dtype), numbers, mode="drop")

    def _block(self, cache: jax.Array, start: jax.Array, H: int) -> jax.Array:
        """Keys or values [B, K, block, H] of the rows' slots, from position `start` on."""
        start, size, K = start * H, self.block * H, cache.shape[1]
        if self.all_slots:
            rows = lax.dynamic_slice_in_dim(cache, start, size, axis=2)
        else:
            rows = jax.vmap(lambda row: lax.dynamic_slice(cache, (row, 0, start), (1, K, size))[0])(self.rows)
        return rows.reshape(-1, K, self.block, H)

    def _so_far(self, cache: jax.Array) -> jax.Array:
        """The rows' slots of a cache [S, …], zero where a trajectory begins: the slot may hold an earlier one."""
        rows = cache if self.all_slots else cache[self.rows]
        return jnp.where((self.positions[:, 0] > 0).reshape(-1, *[1] * (rows.ndim - 1)), rows, 0.0)

    def _kept(self, cache: jax.Array, new: jax.Array) -> jax.Array:
        """The cache [S, …] with new values [B, …] of the rows that have a token."""
        rows = jnp.where(self.real.any(-1), self.rows, len(cache))
        return cache.at[rows].set(new, mode="drop")

    def _with(self, layer: int, cache: LayerCache) -> "Slots":
        return replace(self, layers=(*self.layers[:layer], cache, *self.layers[layer + 1 :]))


def is_bound(arch: Architecture) -> bool:
    """Whether some layer's cache is bound to one length: it cannot be cut back to an earlier one."""
    return any(arch.kind(layer) != "full_attention" for layer in range(arch.layers))


def empty_cache(
    arch: Architecture, slots: int, capacity: int, dtype: jnp.dtype, *, block: int, chunk: int
) -> tuple[LayerCache, ...]:
    """The cache of all layers, for `slots` trajectories of up to `capacity` tokens; dtype: of keys and values.

    block: as in `Slots`, of which capacity is a multiple. chunk: tokens that are written at a time, at most.
    """

    def layer(index: int) -> LayerCache:
        if arch.delta and arch.kind(index) == "linear_attention":
            delta = arch.delta
            return Recurrent(
                inputs=jnp.zeros((slots, delta.kernel - 1, delta.channels), jnp.float32),
                memory=jnp.zeros((slots, delta.value_heads, delta.key_dim, delta.value_dim), jnp.float32),
            )
        length = capacity
        if arch.kind(index) == "sliding_attention":  # the first of a chunk must still see its window
            length = min(capacity, -(-(arch.window - 1 + chunk) // block) * block)
        shape = (slots, arch.kv_heads, length * arch.head_dim)
        return KeyValues(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    return tuple(layer(index) for index in range(arch.layers))
