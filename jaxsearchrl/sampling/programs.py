"""The sampler's three device programs, pure functions over the cache: extend, fork, decode.

Every shape is fixed by the configuration, so each is compiled once; what varies (lengths, step counts, temperatures,
stop ids, seeds) is traced.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jaxsearchrl.models.decoder import Model, Weights, forward, head_of
from jaxsearchrl.models.products import rows_dot
from jaxsearchrl.models.state import Slots
from jaxsearchrl.sampling.choose import choose

Array: TypeAlias = Any  # numpy on the host, traced inside a program, a shape when that is compiled

Cache = tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]
"""Keys and values, per layer [S, K, L, H]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """What decode knows of each slot, [S] each.

    pending: the last token of the trajectory, whose key and value are not in the cache yet. lengths: positions in the
    cache, which is also the position of `pending`. budgets: tokens that may still be sampled; 0 leaves the slot alone.
    """

    pending: Array
    lengths: Array
    budgets: Array
    uids: Array
    temperatures: Array


class Decoded(NamedTuple):
    """tokens and logprobs [S, steps] (the first counts[s] are real), counts [S], stopped [S] (by a stop id)."""

    tokens: jax.Array
    logprobs: jax.Array
    counts: jax.Array
    stopped: jax.Array


def extend(
    model: Model,
    block: int,
    base: Weights,
    lora: Weights,
    cache: Cache,
    tokens: jax.Array,
    rows: jax.Array,
    positions: jax.Array,
    blocks: jax.Array,
) -> Cache:
    """Writes chunks of tokens [C, Tc] into the slots `rows` [C] at absolute `positions` [C, Tc] (padding: L)."""
    state = Slots(*cache, rows, positions, blocks, block=block, all_slots=False)
    _, state = forward(model, base, lora, tokens, state)
    return state.keys, state.values


def fork(cache: Cache, sources: jax.Array, targets: jax.Array, count: jax.Array) -> Cache:
    """Copies slot sources[i] over slot targets[i] for i < count; both [S]."""

    def copy(i, cache):
        one = lambda c: lax.dynamic_update_index_in_dim(c, lax.dynamic_index_in_dim(c, sources[i], 0), targets[i], 0)  # noqa: E731
        return jax.tree.map(one, cache)

    return lax.fori_loop(0, count, copy, cache)


def decode(
    model: Model,
    block: int,
    vocab_size: int,
    max_steps: int,
    base: Weights,
    lora: Weights,
    cache: Cache,
    rows: Rows,
    stop_ids: jax.Array,
    seed: jax.Array,
    steps: jax.Array,
    blocks: jax.Array,
) -> tuple[Cache, Decoded]:
    """Samples up to `steps` <= max_steps tokens in every slot with a budget; a row that ends is frozen.

    The random stream of a token is fold_in(fold_in(seed, uid), position): what an episode samples does not depend on
    who shares the batch, nor on how its decoding was cut into dispatches. stop_ids [n], padded with -1.
    """
    S = rows.pending.shape[0]
    capacity = cache[0][0].shape[2]
    head = head_of(base)
    keys = jax.vmap(lambda uid: jax.random.fold_in(seed, uid))(rows.uids)

    def body(carry):
        step, cache, pending, lengths, out = carry
        active = (out.counts < rows.budgets) & ~out.stopped
        positions = jnp.where(active, lengths, capacity)[:, None]
        state = Slots(cache[0], cache[1], jnp.arange(S), positions, blocks, block=block, all_slots=True)
        hidden, state = forward(model, base, lora, pending[:, None], state)
        logits = rows_dot(hidden[:, 0], head)
        uniforms = jax.vmap(lambda key, at: jax.random.uniform(jax.random.fold_in(key, at)))(keys, lengths + 1)
        ids, logprobs = choose(logits, uniforms, rows.temperatures, vocab_size)
        ids = jnp.where(active, ids, pending)
        out = Decoded(
            out.tokens.at[:, step].set(ids),
            out.logprobs.at[:, step].set(logprobs),
            out.counts + active,
            out.stopped | (active & (ids[:, None] == stop_ids).any(-1)),
        )
        return step + 1, (state.keys, state.values), ids, lengths + active, out

    def going(carry):
        step, _, _, _, out = carry
        return (step < steps) & ((out.counts < rows.budgets) & ~out.stopped).any()

    empty = Decoded(
        jnp.zeros((S, max_steps), jnp.int32),
        jnp.zeros((S, max_steps), jnp.float32),
        jnp.zeros(S, jnp.int32),
        jnp.zeros(S, bool),
    )
    _, cache, _, _, out = lax.while_loop(going, body, (jnp.int32(0), cache, rows.pending, rows.lengths, empty))
    return cache, out
