"""Compiles the programs of sampler and learner for an accelerator that is not there; adds up what a chip must hold.

python -m benchmarks.compile_plan --size=0.5b --target=v5e-1 [--slots=16] [--only=decode,extend] [--out=plan.json]

Programs are compiled ahead of time from shapes alone: no weight is made, nothing is run. The bytes are the compiler's.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.shapes import SHAPES
from benchmarks.targets import GIB, TARGETS, Target
from jaxsearchrl.config import LearningConfig, LoraConfig, SamplingConfig
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import PackedBatch
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.decoder import Model, build_model
from jaxsearchrl.models.sharding import cache_shardings, lora_shardings, shardings
from jaxsearchrl.models.state import LayerCache
from jaxsearchrl.sampling.engine import empty_slots, lower_programs

SAMPLING = SamplingConfig(slots=16, capacity=30720, extend_chunks=8, chunk_tokens=256, decode_steps=32, read_block=512)
LEARNING = LearningConfig(pack_rows=1, pack_tokens=30720)
LORA = LoraConfig(rank=16)


@dataclass(frozen=True)
class Program:
    """Bytes on one chip, as the compiler plans them; aliased: of the outputs, what lies where an argument did."""

    arguments: int = 0
    outputs: int = 0
    temporaries: int = 0
    aliased: int = 0
    seconds: float = 0.0  # of compilation
    error: str = ""

    @property
    def more(self) -> int:
        """What the program needs beside its arguments."""
        return self.temporaries + self.outputs - self.aliased


@dataclass(frozen=True)
class Plan:
    """held: what lies on a chip all the time. learning: what the learner keeps beside, between its programs."""

    held: dict[str, int]
    learning: dict[str, int]
    sampler: dict[str, Program]
    learner: dict[str, Program]

    @property
    def total(self) -> int:
        """What a chip must hold: all that lies there, and the hungriest program while it runs."""
        sampling = max((program.more for program in self.sampler.values()), default=0)
        learning = max((program.more for program in self.learner.values()), default=0)
        return sum(self.held.values()) + max(sampling, sum(self.learning.values()) + learning)


@dataclass(frozen=True)
class Abstract:
    """The arrays of a run, as shapes that know how they lie on a mesh."""

    base: Any
    lora: Any
    opt_state: Any
    cache: Any
    batch: PackedBatch


def plan(
    arch: Architecture, target: Target, sampling: SamplingConfig, learning: LearningConfig, only: Sequence[str] = ()
) -> Plan:
    """Compiles the programs (all, or those whose names begin so) and says what they and their arrays take."""
    packed = arch.family == "gpt_oss"  # whose checkpoints have their experts in MXFP4
    model, mesh = build_model(arch, LORA, jnp.bfloat16, packed_experts=packed), target.mesh()
    arrays = abstract(model, mesh, sampling, learning)
    hidden = arrays.batch.tokens.size * arch.d_model * 4
    held = {"base": arrays.base, "adapter": arrays.lora, "Adam": arrays.opt_state, "cache": arrays.cache}
    wanted = lambda name: not only or name.startswith(tuple(only))  # noqa: E731
    sampler = lower_programs(model, sampling, arch.vocab_size, arrays.base, arrays.lora, arrays.cache)
    return Plan(
        held={name: bytes_of(tree) for name, tree in held.items()},
        learning={"gradients": bytes_of(arrays.lora), "inputs of the layers": arch.layers * hidden},
        sampler={name: compiled(name, lowered) for name, lowered in sampler.items() if wanted(name)},
        learner={
            name: compiled(name, lowered)
            for name, lowered in learner_programs(model, arrays, learning).items()
            if wanted(name)
        },
    )


def abstract(model: Model, mesh: Mesh, sampling: SamplingConfig, learning: LearningConfig) -> Abstract:
    """All arrays; what the sharding table does not name lies whole on every chip."""
    struct, whole = jax.ShapeDtypeStruct, NamedSharding(mesh, PartitionSpec())
    base = {
        name: struct(model.specs[name].shape, model.specs[name].dtype, sharding=sharding)
        for name, sharding in shardings(model, mesh).items()
    }
    lora = {
        name: struct(model.lora_shapes[name], jnp.float32, sharding=sharding)
        for name, sharding in lora_shardings(model, mesh).items()
    }
    state = jax.eval_shape(make_optimizer(learning, total_steps=1).init, lora)
    state = jax.tree_util.tree_map_with_path(
        # Moments lie as their weights do; each is under its weight's name.
        lambda path, x: struct(x.shape, x.dtype, sharding=getattr(lora.get(_name(path)), "sharding", whole)),
        state,
    )
    cache = jax.eval_shape(lambda: empty_slots(model.arch, sampling))

    def laid(layer: LayerCache) -> LayerCache:
        of = cache_shardings(layer, model.arch, mesh)
        return jax.tree.map(lambda x, sharding: struct(x.shape, x.dtype, sharding=sharding), layer, of)

    cache = jax.tree.map(laid, cache, is_leaf=lambda x: isinstance(x, LayerCache))
    B, T = learning.pack_rows, learning.pack_tokens
    i32 = lambda *shape: struct(shape, jnp.int32, sharding=whole)  # noqa: E731
    f32 = lambda *shape: struct(shape, jnp.float32, sharding=whole)  # noqa: E731
    place, slot, number, route = i32(B, T), i32(B * T), f32(B * T), struct((B * T,), jnp.uint32, sharding=whole)
    batch = PackedBatch(place, place, place, slot, slot, number, number, number, number, number, route, i32())
    return Abstract(base, lora, state, cache, batch)


def learner_programs(model: Model, arrays: Abstract, learning: LearningConfig) -> dict[str, jax.stages.Lowered]:
    """The programs of gradient and update, ready to be compiled."""
    loss = policy_loss(learning)
    learner = Learner(model, arrays.base, loss, vocab_size=model.arch.vocab_size, temperature=1.0)
    update = make_update(make_optimizer(learning, total_steps=1))
    lowered = learner.lower_programs(arrays.lora, arrays.batch)
    return {**lowered, "update": update.lower(arrays.lora, arrays.opt_state, arrays.lora)}


def compiled(name: str, lowered: jax.stages.Lowered) -> Program:
    """What a program takes; with an error, such as a lack of memory, instead, if it cannot be compiled."""
    start = time.perf_counter()
    try:
        memory: Any = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        program = Program(seconds=time.perf_counter() - start, error=str(error))
    else:
        program = Program(
            arguments=memory.argument_size_in_bytes,
            outputs=memory.output_size_in_bytes,
            temporaries=memory.temp_size_in_bytes,
            aliased=memory.alias_size_in_bytes,
            seconds=time.perf_counter() - start,
        )
    print(f"  {name}: {program}", flush=True)
    return program


def bytes_of(tree: Any) -> int:
    """Of all arrays of a tree on one chip."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def table(plan: Plan, target: Target) -> str:
    """In GiB, as Markdown."""
    gib = lambda size: f"{size / GIB:.2f}"  # noqa: E731
    lines = ["| program | arguments | outputs | aliased | temporaries | more |", "|---|---|---|---|---|---|"]
    for name, program in {**plan.sampler, **plan.learner}.items():
        sizes = (program.arguments, program.outputs, program.aliased, program.temporaries, program.more)
        cells = ["does not compile", *[""] * 4] if program.error else map(gib, sizes)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    parts = [f"{name} {gib(size)}" for name, size in {**plan.held, **plan.learning}.items()]
    return "\n".join([*lines, "", f"{', '.join(parts)}; in all {gib(plan.total)} of {gib(target.memory)} a chip"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_plan", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--size", required=True, choices=SHAPES)
    parser.add_argument("--target", required=True, choices=TARGETS)
    parser.add_argument("--slots", type=int, default=SAMPLING.slots)
    parser.add_argument("--tokens", type=int, default=SAMPLING.capacity, help="of a slot, and of the learner's row")
    parser.add_argument("--only", default="", help="programs, by commas, by the beginning of their names")
    parser.add_argument("--out", help="a JSON file for the bytes")
    arguments = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")  # where no accelerator is, its plugin must not look for one
    jax.config.update("jax_enable_compilation_cache", False)
    target = TARGETS[arguments.target]
    sampling = replace(SAMPLING, slots=arguments.slots, capacity=arguments.tokens)
    learning = replace(LEARNING, pack_tokens=arguments.tokens)
    only = arguments.only.split(",") if arguments.only else ()
    result = plan(SHAPES[arguments.size], target, sampling, learning, only)
    print(table(result, target))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")


def _name(path: tuple[Any, ...]) -> str:
    return str(getattr(path[-1], "key", ""))


if __name__ == "__main__":
    main()
