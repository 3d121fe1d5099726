"""Counts by hand: against the compiler's, and against numbers worked out here."""

from dataclasses import replace

import pytest
from jax.sharding import AbstractMesh

from jaxsearchrl.config import Config, LearningConfig, LoraConfig, ModelConfig, SamplingConfig
from jaxsearchrl.models.sharding import AXES
from jaxsearchrl.models.tiny import tiny_architecture
from jaxsearchrl.planning import costs
from jaxsearchrl.planning.costs import Work
from jaxsearchrl.planning.estimate import count_phases
from jaxsearchrl.planning.programs import abstract_arrays
from tests.planning.conftest import planned

NO_LORA = LoraConfig(rank=0)


def compilers(lowered) -> float:
    quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # of machine code alone
    return lowered.compile(quickly).cost_analysis()["flops"]


def test_a_learner_step_has_the_compilers_flops(dense):
    learning, layers = dense.config.learning, dense.arch.layers
    model, arrays = dense.model, dense.arrays
    parts = {
        "forward 0": costs.layer_forward(model, arrays, learning, 0),
        "backward 0": costs.layer_backward(model, arrays, learning, 0),
        "head": costs.head(arrays, 128),
    }
    compiled = {name: compilers(dense.learner[name]) for name in parts}
    for name, work in parts.items():
        assert work.flops == pytest.approx(compiled[name], rel=0.05), name
    step = layers * (compiled["forward 0"] + compiled["backward 0"]) + compiled["head"]
    assert costs.learner_batch(model, arrays, learning, 128).flops == pytest.approx(step, rel=0.05)


@pytest.mark.slow
def test_the_samplers_programs_have_the_compilers_flops(dense):
    model, arrays, sampling = dense.model, dense.arrays, dense.config.sampling
    extend = costs.extend_call(model, arrays, sampling, 128)
    assert extend.flops == pytest.approx(compilers(dense.sampler["extend"]), rel=0.05)
    wide = planned(dense.arch, replace(dense.config, sampling=replace(sampling, slots=64)))
    decode = costs.decode_step(wide.model, wide.arrays, wide.config.sampling, 128)
    assert decode.flops == pytest.approx(compilers(wide.sampler["decode"]), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_5_text"])
def test_experts_and_recurrent_layers_have_the_compilers_flops(family):
    arch = tiny_architecture(family, vocab_size=64, d_model=256, heads=4, kv_heads=2, head_dim=64, mlp_dim=512)
    config = Config(
        sampling=SamplingConfig(slots=2, capacity=128), learning=LearningConfig(pack_rows=1, pack_tokens=128)
    )
    made = planned(arch, config)
    for count, name in ((costs.layer_forward, "forward 0"), (costs.layer_backward, "backward 0")):
        work = count(made.model, made.arrays, config.learning, 0)
        assert work.flops == pytest.approx(compilers(made.learner[name]), rel=0.05), name


def test_a_decode_step_by_hand():
    # 1 layer of width 48, 3 heads and 1 kv head of 16, an MLP of 80, 100 ids; 2 slots that read 2 blocks of 16.
    config = Config(lora=NO_LORA, sampling=SamplingConfig(slots=2, capacity=64, read_block=16))
    made = planned(tiny_architecture("llama", vocab_size=100, layers=1), config)
    weights = [(48, 48), (16, 48), (16, 48), (48, 48), (80, 48), (80, 48), (48, 80), (100, 48)]
    work = costs.decode_step(made.model, made.arrays, config.sampling, 20)
    assert work.bfloat16 == 2 * 2 * sum(a * b for a, b in weights)
    assert work.float32 == 2 * 2 * (2 * 3 * 16 * 32)  # slots, two products, heads by 32 positions
    cache = 2 * 2 * 16 * 32 * 4  # slots, keys and values
    assert work.bytes == cache + sum(2 * a * b + 2 * (a + b) * 4 for a, b in weights)


def test_attention_of_a_row_is_counted_in_pairs_of_blocks():
    def attention(arch, tokens):
        config = Config(lora=NO_LORA, learning=LearningConfig(pack_rows=2, pack_tokens=tokens))
        made = planned(arch, config)
        return costs.layer_forward(made.model, made.arrays, config.learning, 0).float32

    full = tiny_architecture("llama", vocab_size=30)
    pair = 2 * 2 * 2 * 256 * 256 * 3 * 16  # rows, products
    assert attention(full, 256) == pair
    assert attention(full, 1024) == 10 * pair
    window = replace(full, layer_kinds=("sliding_attention",) * 2, window=200)
    assert attention(window, 1024) == (1 + 2 + 2 + 2) * pair


def test_lora_adds_two_products_forward_and_four_backward(dense):
    learning = dense.config.learning
    none = planned(dense.arch, replace(dense.config, lora=NO_LORA))
    factors = 2 * 128 * 16 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 512))  # FLOPs of x A B, all linears

    def added(count):
        return count(dense.model, dense.arrays, learning, 0).flops - count(none.model, none.arrays, learning, 0).flops

    assert added(costs.layer_forward) == factors
    assert added(costs.layer_backward) == 3 * factors


def test_a_kl_term_has_one_more_forward_pass(dense):
    learning, model, arrays = dense.config.learning, dense.model, dense.arrays
    more = costs.learner_batch(model, arrays, replace(learning, kl_weight=0.1), 100).flops
    forward = 2 * costs.layer_forward(model, arrays, learning, 0).flops + 2 * 100 * 512 * 256
    assert more - costs.learner_batch(model, arrays, learning, 100).flops == forward


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4), (2, 2)])
def test_chips_that_share_a_batchs_rows_share_its_work(dense, sizes):
    """Actions too; "fsdp" cuts where weights lie, but products have them whole."""
    config = replace(dense.config, learning=replace(dense.config.learning, pack_rows=4))
    works = [
        count_phases(dense.model, config, abstract_arrays(dense.model, mesh, config.sampling, config.learning)).row
        for mesh in (AbstractMesh((*sizes, 1, 1), AXES), AbstractMesh((1, 1, 1, 1), AXES))
    ]
    assert works[0].bfloat16 == works[1].bfloat16 / 4
    assert works[0].float32 == works[1].float32 / 4


def test_packed_experts_compute_the_same_and_are_read_in_a_quarter():
    arch = tiny_architecture("gpt_oss", vocab_size=30, d_model=64)
    sampling = SamplingConfig(slots=2, capacity=128)
    works = [
        costs.decode_step(made.model, made.arrays, sampling, 64)
        for made in (planned(arch, Config(model=ModelConfig(packed_experts=p), sampling=sampling)) for p in (0, 1))
    ]
    assert works[0].flops == works[1].flops
    experts = 2 * 5 * (64 * 64 + 32 * 64)  # values of 2 layers
    assert works[0].bytes - works[1].bytes == experts * 2 - experts * 17 / 32


def test_a_roofline_is_the_slower_of_products_and_memory():
    assert Work(bfloat16=300.0, float32=100.0, bytes=60.0).seconds(100.0, 50.0, 20.0) == 5.0
    assert Work(bfloat16=300.0, float32=100.0, bytes=160.0).seconds(100.0, 50.0, 20.0) == 8.0
