"""What lies on a chip and what programs take beside, against counts by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import Config, LearningConfig, LoraConfig, MeshConfig, ModelConfig, SamplingConfig
from jaxsearchrl.models.architecture import tensor_shapes
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.models.tiny import tiny_architecture
from jaxsearchrl.planning.programs import abstract_arrays, bytes_on_chip, compile_program
from jaxsearchrl.planning.targets import find_target

SMALL = SamplingConfig(slots=3, capacity=40, extend_chunks=2, chunk_tokens=8, decode_steps=4, read_block=16)
SHORT = LearningConfig(pack_rows=1, pack_tokens=24)


def arrays(family: str, *, packed: bool = False, **sizes):
    arch = tiny_architecture(family, **sizes)
    model = build_model(arch, LoraConfig(), jnp.bfloat16, packed_experts=packed)
    return abstract_arrays(model, find_target("cpu").mesh(MeshConfig()), SMALL, SHORT)


def test_every_array_is_counted_once():
    made = arrays("llama", vocab_size=300)  # 2 layers of width 48, 3 heads and 1 kv head of 16, MLPs of 80, no bias
    layer = 2 * 48 * 48 + 2 * 16 * 48 + 3 * 80 * 48 + 2 * 48
    assert bytes_on_chip(made.base) == 2 * (300 * 48 + 48 + 2 * layer)
    adapter = 4 * 2 * 16 * (2 * (48 + 48) + 2 * (48 + 16) + 3 * (48 + 80))
    assert bytes_on_chip(made.lora) == adapter
    assert bytes_on_chip(made.opt_state) == 2 * adapter + 4  # two moments and the count
    assert bytes_on_chip(made.cache) == 4 * 2 * 2 * 3 * 16 * 48  # layers, keys and values, slots, head, 3 blocks of 16


def test_a_recurrent_state_is_kept_three_times():
    state = 3 * (3 * (2 * 2 * 6 + 4 * 10) + 4 * 6 * 10)  # slots; inputs of 3 tokens, memories of 4 heads
    made = arrays("qwen3_5_text", vocab_size=30)
    assert bytes_on_chip(made.cache) == 4 * (3 * state + 2 * 3 * 16 * 48)


def test_packed_experts_take_four_bits_and_their_scales():
    shapes = tensor_shapes(tiny_architecture("gpt_oss", vocab_size=30, d_model=64))
    experts = sum(np.prod(shape) for name, shape in shapes.items() if name.endswith(("gate_up_proj", "down_proj")))
    others = sum(map(np.prod, shapes.values())) - experts
    made = arrays("gpt_oss", vocab_size=30, d_model=64, packed=True)
    assert bytes_on_chip(made.base) == 2 * others + experts * 17 // 32


@pytest.mark.parametrize("name", ["extend", "fork"])
def test_the_cache_is_updated_in_place(dense, name):
    cache = bytes_on_chip(dense.arrays.cache)
    program = compile_program(dense.sampler[name])
    assert cache == program.aliased <= program.outputs < cache + 1000
    assert program.more == program.temporaries + program.outputs - cache


def test_programs_of_layers_take_the_layer_and_its_adapter(dense):
    layer = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256 + 2 * 256)
    adapter, hidden = bytes_on_chip(dense.arrays.lora) // 2, 4 * 128 * 256
    forward = compile_program(dense.learner["forward 0"])
    assert forward.arguments == layer + adapter + hidden + 4 * 2 * 128  # positions and segments
    assert hidden <= forward.outputs < hidden + 100


def test_a_cpus_compiler_estimates_no_time(dense):
    assert compile_program(dense.learner["embed"]).estimate is None


def test_settings_of_the_learner_make_its_batch():
    config = Config(model=ModelConfig(), learning=LearningConfig(pack_rows=3, pack_tokens=24))
    model = build_model(tiny_architecture("llama", vocab_size=30), config.lora)
    batch = abstract_arrays(model, find_target("cpu").mesh(MeshConfig()), SMALL, config.learning).batch
    assert batch.tokens.shape == (3, 24)
    assert batch.targets.shape == (72,)
