"""The programs of sampler and learner, compiled ahead of time from shapes alone: no weight is made, nothing is run."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxsearchrl.config import Config, LearningConfig, SamplingConfig
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import PackedBatch
from jaxsearchrl.models.decoder import Model
from jaxsearchrl.models.sharding import cache_shardings, lora_shardings, row_parts, rows, shardings, state_shardings
from jaxsearchrl.models.state import LayerCache
from jaxsearchrl.sampling.lowering import empty_slots, lower_programs


@dataclass(frozen=True)
class Program:
    """A compiled program: bytes on one chip, as the compiler plans them.

    aliased: of the outputs, what lies where an argument did. estimate: the TPU compiler's own estimate, seconds of a
    call, where it can be trusted, else None. error: why it cannot be compiled, such as a lack of memory.
    """

    arguments: int = 0
    outputs: int = 0
    temporaries: int = 0
    aliased: int = 0
    estimate: float | None = None
    error: str = ""

    @property
    def more(self) -> int:
        """What the program needs beside its arguments."""
        return self.temporaries + self.outputs - self.aliased


@dataclass(frozen=True)
class Arrays:
    """The arrays of a run, as shapes that know how they lie on a mesh."""

    base: Any
    lora: Any
    opt_state: Any
    cache: Any
    batch: PackedBatch


def abstract_arrays(model: Model, mesh: Any, sampling: SamplingConfig, learning: LearningConfig) -> Arrays:
    """All arrays; what the sharding table does not name lies whole on every chip. mesh: may be an AbstractMesh."""
    struct = jax.ShapeDtypeStruct
    base = {
        name: struct(model.specs[name].shape, model.specs[name].dtype, sharding=sharding)
        for name, sharding in shardings(model, mesh).items()
    }
    lora = {
        name: struct(model.lora_shapes[name], jnp.float32, sharding=sharding)
        for name, sharding in lora_shardings(model, mesh).items()
    }
    state = jax.eval_shape(make_optimizer(learning, total_steps=1).init, lora)
    of_state = state_shardings(state, lora_shardings(model, mesh), mesh)
    state = jax.tree.map(lambda x, sharding: struct(x.shape, x.dtype, sharding=sharding), state, of_state)

    def laid(layer: LayerCache) -> LayerCache:
        of = cache_shardings(layer, model.arch, mesh)
        return jax.tree.map(lambda x, sharding: struct(x.shape, x.dtype, sharding=sharding), layer, of)

    cache = jax.eval_shape(lambda: empty_slots(model.arch, sampling))
    cache = jax.tree.map(laid, cache, is_leaf=lambda x: isinstance(x, LayerCache))
    B, T = learning.pack_rows, learning.pack_tokens

    def by_rows(shape: tuple[int, ...], dtype: Any) -> Any:
        return struct(shape, dtype, sharding=rows(struct(shape, dtype), mesh))

    place = by_rows((B, T), jnp.int32)
    slot, number, route = (by_rows((B * T,), dtype) for dtype in (jnp.int32, jnp.float32, jnp.uint32))
    counts = by_rows((row_parts(mesh),), jnp.int32)
    batch = PackedBatch(place, place, place, slot, slot, number, number, number, number, number, route, counts)
    return Arrays(base, lora, state, cache, batch)


def bytes_on_chip(tree: Any) -> int:
    """Of all arrays of a tree, those or those parts that lie on one chip."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def lower_sampler(model: Model, config: Config, arrays: Arrays) -> dict[str, jax.stages.Lowered]:
    """The sampler's programs by name, ready to be compiled."""
    return lower_programs(model, config.sampling, model.arch.vocab_size, arrays.base, arrays.lora, arrays.cache)


def lower_learner(model: Model, config: Config, arrays: Arrays) -> dict[str, jax.stages.Lowered]:
    """The programs of gradient and update by name, ready to be compiled."""
    learner = Learner(
        model,
        arrays.base,
        policy_loss(config.learning),
        vocab_size=model.arch.vocab_size,
        temperature=config.sampling.temperature,
    )
    update = make_update(make_optimizer(config.learning, total_steps=1))
    lowered = learner.lower_programs(arrays.lora, arrays.batch)
    return {**lowered, "update": update.lower(arrays.lora, arrays.opt_state, arrays.lora)}


def compile_program(lowered: jax.stages.Lowered) -> Program:
    """What a program takes; an error of the compiler's is part of the answer."""
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return Program(error=str(error))
    memory: Any = compiled.memory_analysis()
    return Program(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        estimate=_estimate(compiled),
    )


def _estimate(compiled: jax.stages.Compiled) -> float | None:
    """A loop's body is counted once, however often it runs: only programs without a loop are believed."""
    costs: Any = compiled.cost_analysis()
    seconds = (costs or {}).get("optimal_seconds", 0.0)
    return seconds if seconds > 0 and " while(" not in (compiled.as_text() or "") else None
