"""What a chip must hold: all that lies there, and the hungriest program; whether it fits, and what to change if not."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from jaxsearchrl.config import Config, MeshConfig
from jaxsearchrl.config_checks import validate
from jaxsearchrl.config_tree import with_values
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.decoder import Model, build_model
from jaxsearchrl.models.mesh_choice import chosen_mesh, weight_bytes
from jaxsearchrl.models.sharding import AXES, check_cut, mesh_sizes
from jaxsearchrl.planning.programs import (
    Arrays,
    Program,
    abstract_arrays,
    bytes_on_chip,
    compile_program,
    lower_learner,
    lower_sampler,
)
from jaxsearchrl.planning.targets import Target
from jaxsearchrl.telemetry.progress import Progress


@dataclass(frozen=True)
class Plan:
    """Bytes on one chip. held: what lies there all the time. learning: what is there beside while the learner works."""

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

    @property
    def errors(self) -> dict[str, str]:
        """Of programs that do not compile."""
        return {name: program.error for name, program in {**self.sampler, **self.learner}.items() if program.error}

    def fits(self, memory: int) -> bool:
        """Whether all programs compile and a chip's memory suffices."""
        return not self.errors and self.total <= memory


@dataclass(frozen=True)
class Advice:
    """A change, and the bytes of a chip that it saves by its arrays (temporaries, which shrink too, are not in it)."""

    change: str
    saves: int


def model_of(arch: Architecture, config: Config) -> Model:
    """As a run declares it. Raises ConfigError as `build_model` does."""
    dtype, packed = jnp.dtype(config.model.weights_dtype), config.model.packed_experts
    return build_model(arch, config.lora, dtype, packed_experts=packed)


def on_chips(config: Config, model: Model, target: Target) -> Config:
    """The settings on those chips: by their own mesh, or, where they name none, the one that a run would choose."""
    memory = target.chip.by_default  # what JAX says there
    each = target.chips // target.hosts
    mesh = chosen_mesh(config, model.arch, weight_bytes(model), each, memory, target.hosts)
    return replace(config, mesh=MeshConfig(*mesh_sizes(mesh, each, target.hosts)))


def make_plan(model: Model, config: Config, target: Target, progress: Progress) -> tuple[Plan, Arrays]:
    """Compiles the programs, one after the other: a sampler's for one host, as each has its own.

    Raises as `Target.mesh`, and as `check_cut`.
    """
    mesh = target.mesh(config.mesh)
    check_cut(config, mesh)
    arrays = abstract_arrays(model, mesh, config.sampling, config.learning)
    held, learning = held_bytes(model, config, arrays)
    on_host = with_values(config, {"sampling.slots": config.sampling.slots // target.hosts})
    of_host = Mesh(mesh.devices[: mesh.shape["data"] // target.hosts], AXES)
    arrays_on_host = abstract_arrays(model, of_host, on_host.sampling, on_host.learning)
    programs = []
    for part, lower, settings, laid in (
        ("sampler", lower_sampler, on_host, arrays_on_host),
        ("learner", lower_learner, config, arrays),
    ):
        with progress.phase(f"writing the {part}'s programs"):
            lowered = lower(model, settings, laid)
        compiled = {}
        for name, program in lowered.items():
            with progress.phase(f"compiling {name}"):
                compiled[name] = compile_program(program)
        programs.append(compiled)
    return Plan(held, learning, *programs), arrays


def advise(plan: Plan, arch: Architecture, config: Config, target: Target) -> Iterator[Advice]:
    """What would save memory, in the order to try it; each by itself. Only what the settings allow is proposed."""
    sampling, learning, excess = config.sampling, config.learning, plan.total - target.chip.memory

    def change(*values: tuple[str, Any], on: Target = target, named: str = "") -> Iterator[Advice]:
        other = with_values(config, dict(values))
        if mesh := _mesh_for(other, on):
            model = model_of(arch, other)
            held, learns = held_bytes(model, other, abstract_arrays(model, mesh, other.sampling, other.learning))
            saved = plan.total - replace(plan, held=held, learning=learns).total
            if saved > 0:
                yield Advice(named or " and ".join(f"{key}={_text(value)}" for key, value in values), saved)

    if sampling.slots > 1:
        needless = math.ceil(excess / (plan.held["cache"] / sampling.slots))
        yield from change(("sampling.slots", min(sampling.slots - 1, max(1, sampling.slots - needless))))
    if learning.pack_rows > 1:
        yield from change(("learning.pack_rows", 1))
    if learning.pack_tokens > sampling.capacity:
        yield from change(("learning.pack_tokens", sampling.capacity))
    if sampling.cache_dtype == "float32":
        yield from change(("sampling.cache_dtype", "bfloat16"))
    half = ("sampling.capacity", sampling.capacity // 2 // sampling.read_block * sampling.read_block)
    yield from change(half)
    yield from change(half, ("learning.pack_tokens", half[1]))
    if arch.experts and arch.experts.clamp and not config.model.packed_experts:
        yield from change(("model.packed_experts", True))
    if target.chip.platform != "cpu":
        twice = replace(target, chips=2 * target.chips)
        named = f"{twice.chips} chips in the place of {target.chips}"
        yield from change(("mesh.tensor", 2 * config.mesh.tensor), on=twice, named=named)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _mesh_for(config: Config, target: Target) -> AbstractMesh | None:
    """None where the settings are not valid there."""
    try:
        validate(config, check_files=False)
        mesh = AbstractMesh(mesh_sizes(config.mesh, target.chips // target.hosts, target.hosts), AXES)
        check_cut(config, mesh)
    except ConfigError:
        return None
    return mesh


def held_bytes(model: Model, config: Config, arrays: Arrays) -> tuple[dict[str, int], dict[str, int]]:
    """What a chip holds all the time, and what the learner keeps beside; see `Plan`."""
    adapter = bytes_on_chip(arrays.lora)
    held = {
        "weights": bytes_on_chip(arrays.base),
        "adapter": adapter,
        "Adam": bytes_on_chip(arrays.opt_state),
        "cache": bytes_on_chip(arrays.cache),
    }
    if config.learning.kl_weight:
        held["reference adapter"] = adapter
    inputs = model.arch.layers * bytes_on_chip(arrays.batch.tokens) * model.arch.d_model  # 4 bytes, as a token's
    return held, {"gradients": adapter, "inputs of the layers": inputs}
