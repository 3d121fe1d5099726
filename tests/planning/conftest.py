"""A small dense model and settings whose programs have no loop that runs twice."""

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import pytest

from jaxsearchrl.config import Config, LearningConfig, MeshConfig, SamplingConfig
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.decoder import Model, build_model
from jaxsearchrl.models.tiny import tiny_architecture
from jaxsearchrl.planning.programs import Arrays, abstract_arrays, lower_learner, lower_sampler
from jaxsearchrl.planning.targets import find_target


@dataclass
class Planned:
    """A model and settings, with their abstract arrays and programs."""

    arch: Architecture
    config: Config
    model: Model
    arrays: Arrays

    @cached_property
    def sampler(self):
        return lower_sampler(self.model, self.config, self.arrays)

    @cached_property
    def learner(self):
        return lower_learner(self.model, self.config, self.arrays)


def planned(arch: Architecture, config: Config) -> Planned:
    model = build_model(arch, config.lora, jnp.bfloat16, packed_experts=config.model.packed_experts)
    mesh = find_target("cpu").mesh(MeshConfig())
    return Planned(arch, config, model, abstract_arrays(model, mesh, config.sampling, config.learning))


@pytest.fixture(scope="package")
def dense() -> Planned:
    """One block of keys, one chunk, one row of one block: what a loop's body does is done once."""
    sizes = {"d_model": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "mlp_dim": 512}
    sampling = SamplingConfig(slots=3, capacity=128, read_block=128, extend_chunks=1, chunk_tokens=128, decode_steps=4)
    config = Config(sampling=sampling, learning=LearningConfig(pack_rows=1, pack_tokens=128))
    return planned(tiny_architecture("llama", vocab_size=512, **sizes), config)
