"""The sampler's device programs, pure functions over the cache: extend, fork, decode, and two for bound caches.

Every shape is fixed by the configuration, so each is compiled once; what varies (lengths, step counts, temperatures,
stop ids, seeds) is traced.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jaxsearchrl.models.decoder import Model, Weights, forward, head_of
from jaxsearchrl.models.products import rows_dot
from jaxsearchrl.models.state import LayerCache, Slots
from jaxsearchrl.sampling.choose import choose

Array: TypeAlias = Any  # numpy on the host, traced inside a program, a shape when that is compiled

Bound = dict[int, LayerCache]
"""Those layers, by number, whose cache is bound to one length (see `state.is_bound`)."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """What all slots hold.

    layers: of each layer, as it stands now. started, prompt: the bound ones as they were when the last decode began,
    and at the end of the slot's prompt.
    """

    layers: tuple[LayerCache, ...]
    started: Bound
    prompt: Bound


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
    """tokens and logprobs [S, steps] (the first counts[s] are real), counts [S], stopped [S] (by a stop id).

    routes [S, steps] uint32: of the pass that each token was sampled from (see models/routes.py). load [D, layers, E]
    int32: how often each bank's passes chose each expert. Both are None for a model without experts.
    """

    tokens: jax.Array
    logprobs: jax.Array
    counts: jax.Array
    stopped: jax.Array
    routes: jax.Array | None
    load: jax.Array | None


def extend(
    model: Model,
    capacity: int,
    block: int,
    base: Weights,
    lora: Weights,
    cache: Cache,
    tokens: jax.Array,
    rows: jax.Array,
    positions: jax.Array,
    blocks: jax.Array,
) -> Cache:
    """Writes chunks of tokens [C, Tc] into the slots `rows` [C] at absolute `positions` [C, Tc].

    Padding has position `capacity`. For a model with bound layers no two chunks may be of one slot.
    """
    state = Slots(cache.layers, rows, positions, blocks, capacity=capacity, block=block, all_slots=False)
    _, state = forward(model, base, lora, tokens, state)
    return replace(cache, layers=state.layers)


def fork(cache: Cache, sources: jax.Array, targets: jax.Array, from_prompt: jax.Array, count: jax.Array) -> Cache:
    """Copies slot sources[i] over slot targets[i] for i < count; all [S].

    from_prompt: whether what is bound to one length is taken from the end of the source's prompt.
    """

    def copy(i: jax.Array, layers: tuple[LayerCache, ...]) -> tuple[LayerCache, ...]:
        def one(now: jax.Array, then: jax.Array) -> jax.Array:
            row = jnp.where(from_prompt[i], _row(then, sources[i]), _row(now, sources[i]))
            return lax.dynamic_update_index_in_dim(now, row, targets[i], 0)

        thens = [cache.prompt.get(number, now) for number, now in enumerate(layers)]
        return tuple(jax.tree.map(one, now, then) for now, then in zip(layers, thens, strict=True))

    return replace(cache, layers=lax.fori_loop(0, count, copy, cache.layers))


def remember(cache: Cache, slots: jax.Array, count: jax.Array) -> Cache:
    """Keeps the bound layers of slots[i], i < count, as they stand at the end of a prompt; slots [S]."""
    return replace(cache, prompt=_copied(_bound(cache), cache.prompt, slots, count))


def rewind(cache: Cache, slots: jax.Array, count: jax.Array) -> Cache:
    """Brings the bound layers of slots[i], i < count, back to where the last decode began; slots [S]."""
    back = _copied(cache.started, _bound(cache), slots, count)
    return replace(cache, layers=tuple(back.get(i, layer) for i, layer in enumerate(cache.layers)))


def _bound(cache: Cache) -> Bound:
    return {number: cache.layers[number] for number in cache.started}


def _copied(source: Bound, target: Bound, slots: jax.Array, count: jax.Array) -> Bound:
    def copy(i: jax.Array, target: Bound) -> Bound:
        one = lambda new, old: lax.dynamic_update_index_in_dim(old, _row(new, slots[i]), slots[i], 0)  # noqa: E731
        return jax.tree.map(one, source, target)

    return lax.fori_loop(0, count, copy, target)


def _row(cache: jax.Array, slot: jax.Array) -> jax.Array:
    return lax.dynamic_index_in_dim(cache, slot, 0)


def decode(
    model: Model,
    capacity: int,
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

    Also keeps the bound layers as they were before.

    The random stream of a token is fold_in(fold_in(seed, uid), position): what an episode samples does not depend on
    who shares the batch, nor on how its decoding was cut into dispatches. stop_ids [n], padded with -1.
    """
    S, experts = rows.pending.shape[0], model.arch.experts
    head = head_of(base)
    no_routes = jnp.zeros((S, 1), jnp.uint32) if experts else None
    keys = jax.vmap(lambda uid: jax.random.fold_in(seed, uid))(rows.uids)

    def body(carry):
        step, layers, pending, lengths, out = carry
        active = (out.counts < rows.budgets) & ~out.stopped
        positions = jnp.where(active, lengths, capacity)[:, None]
        sizes = {"capacity": capacity, "block": block, "all_slots": True}
        state = Slots(layers, jnp.arange(S), positions, blocks, **sizes, routes=no_routes, load=out.load)
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
            jax.tree.map(lambda routes, now: routes.at[:, step].set(now[:, 0]), out.routes, state.routes),
            state.load,
        )
        return step + 1, state.layers, ids, lengths + active, out

    def going(carry):
        step, _, _, _, out = carry
        return (step < steps) & ((out.counts < rows.budgets) & ~out.stopped).any()

    empty = Decoded(
        jnp.zeros((S, max_steps), jnp.int32),
        jnp.zeros((S, max_steps), jnp.float32),
        jnp.zeros(S, jnp.int32),
        jnp.zeros(S, bool),
        jnp.zeros((S, max_steps), jnp.uint32) if experts else None,
        jnp.zeros((model.arch.layers, experts.count), jnp.int32) if experts else None,
    )
    start = (jnp.int32(0), cache.layers, rows.pending, rows.lengths, empty)
    _, layers, _, _, out = lax.while_loop(going, body, start)
    load = None if out.load is None else out.load[None]
    return Cache(layers, _bound(cache), cache.prompt), out._replace(load=load)
