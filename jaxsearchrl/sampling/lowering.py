"""The sampler's cache and compiled programs: their shapes, and how they lie on a mesh."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxsearchrl.config import SamplingConfig
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.decoder import Model, Weights
from jaxsearchrl.models.sharding import cache_shardings, mesh_of, whole
from jaxsearchrl.models.state import LayerCache, empty_cache, is_bound
from jaxsearchrl.sampling import programs

MAX_STOP_IDS = 8


def cache_length(config: SamplingConfig) -> int:
    """The capacity in whole blocks."""
    return -(-config.capacity // config.read_block) * config.read_block


def empty_slots(arch: Architecture, config: SamplingConfig) -> programs.Cache:
    """What all slots hold at first."""

    def layers() -> tuple[LayerCache, ...]:
        sizes = {"block": config.read_block, "chunk": config.chunk_tokens}
        return empty_cache(arch, config.slots, cache_length(config), jnp.dtype(config.cache_dtype), **sizes)

    bound = [i for i in range(arch.layers) if arch.kind(i) != "full_attention"]
    kept = [{i: cache for i, cache in enumerate(layers()) if i in bound} for _ in range(2)]
    return programs.Cache(layers(), *kept)


def new_cache(model: Model, base: Weights, config: SamplingConfig) -> programs.Cache:
    """The cache of empty slots where the weights are, each bank and each part on its devices only."""
    mesh, other = mesh_of(base), whole(base)

    def zeros(layer: LayerCache) -> LayerCache:
        if mesh is None:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, device=other), layer)
        cut = cache_shardings(layer, model.arch, mesh)
        return jax.tree.map(lambda x, sharding: jnp.zeros(x.shape, x.dtype, device=sharding), layer, cut)

    abstract = jax.eval_shape(lambda: empty_slots(model.arch, config))
    return jax.tree.map(zeros, abstract, is_leaf=lambda x: isinstance(x, LayerCache))


def banks_of(base: Weights) -> int:
    """Into how many banks slots are cut beside these weights."""
    mesh = mesh_of(base)
    return mesh.shape.get("data", 1) if mesh else 1


def lower_programs(
    model: Model, config: SamplingConfig, vocab_size: int, base: Weights, lora: Weights, cache: programs.Cache
) -> dict[str, jax.stages.Lowered]:
    """The programs by name, ready to be compiled for abstract weights and an abstract cache, which may be sharded.

    Those of bound layers ("remember", "rewind") are there if the model has any.
    """
    mesh = mesh_of(base)
    D = banks_of(base)
    S, C, T = config.slots, D * config.extend_chunks, config.chunk_tokens
    sizes = (cache_length(config), config.read_block)
    each, all_banks = PartitionSpec("data"), PartitionSpec()

    def struct(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        """Of what the host gives: an array for each bank, or a number for all."""
        if mesh is None:
            return jax.ShapeDtypeStruct(shape, dtype)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, each if shape and D > 1 else all_banks))

    def lower(program: Callable[..., Any], specs: Sequence[PartitionSpec], *arguments: Any, **options: Any) -> Any:
        """Lowers a program of one bank for all of them. specs: which of its arguments each bank has its own of."""
        if D > 1:
            shards = {"mesh": mesh, "in_specs": tuple(specs), "out_specs": each, "axis_names": {"data"}}
            program = jax.shard_map(program, **shards, check_vma=False)
        if mesh is not None:  # else the partitioner might choose to give the cache back in another cut
            of_cache = jax.tree.map(lambda x: x.sharding, cache)
            options["out_shardings"] = (of_cache, None) if "keep_unused" in options else of_cache
        return jax.jit(program, **options).lower(*arguments)

    def extend(base, lora, cache, tokens, rows, positions, blocks):
        return programs.extend(model, *sizes, base, lora, cache, tokens, rows, positions, blocks)

    def decode(base, lora, cache, rows, stop_ids, seed, steps, blocks):
        more = (vocab_size, config.decode_steps)
        return programs.decode(model, *sizes, *more, base, lora, cache, rows, stop_ids, seed, steps, blocks)

    def of_count(program: Callable[..., programs.Cache]) -> Callable[..., programs.Cache]:
        return lambda cache, *lists: program(cache, *lists[:-1], lists[-1][0])

    i32 = lambda *shape: struct(jnp.int32, *shape)  # noqa: E731
    one, weights = struct(jnp.int32), (base, lora, cache)
    rows = programs.Rows(i32(S), i32(S), i32(S), i32(S), struct(jnp.float32, S))
    stop_ids = jax.ShapeDtypeStruct((MAX_STOP_IDS,), jnp.int32, sharding=one.sharding)
    seed = jax.eval_shape(jax.random.key, 0)
    seed = jax.ShapeDtypeStruct(seed.shape, seed.dtype, sharding=one.sharding)
    of_weights, lists = (all_banks, all_banks, each), (i32(S), i32(D))
    lowered = {
        "extend": lower(
            extend,
            (*of_weights, each, each, each, all_banks),
            *weights,
            i32(C, T),
            i32(C),
            i32(C, T),
            one,
            donate_argnums=2,
        ),
        "fork": lower(
            of_count(programs.fork), [each] * 5, cache, i32(S), i32(S), struct(jnp.bool_, S), i32(D), donate_argnums=0
        ),
        # keep_unused: nothing reads the buffers of an earlier start, but the new one is written into them.
        "decode": lower(
            decode,
            (*of_weights, each, *[all_banks] * 4),
            *weights,
            rows,
            stop_ids,
            seed,
            one,
            one,
            donate_argnums=2,
            keep_unused=True,
        ),
    }
    if is_bound(model.arch):
        for name, program in (("remember", programs.remember), ("rewind", programs.rewind)):
            lowered[name] = lower(of_count(program), [each] * 3, cache, *lists, donate_argnums=0)
    return lowered
