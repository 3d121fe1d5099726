"""The plan of what a chip must hold: compiled for the CPU at tiny sizes, against counts by hand."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.compile_plan import LEARNING, LORA, SAMPLING, Plan, Program, abstract, bytes_of, main, plan
from benchmarks.shapes import SHAPES
from benchmarks.targets import TARGETS
from jaxsearchrl.models.architecture import tensor_shapes
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.models.tiny import tiny_architecture

SMALL = replace(SAMPLING, slots=3, capacity=40, extend_chunks=2, chunk_tokens=8, decode_steps=4, read_block=16)
SHORT = replace(LEARNING, pack_tokens=24)


def test_every_array_is_counted_once():
    arch = SHAPES["tiny"]  # 2 layers of width 48, 3 heads and 1 kv head of 16, MLPs of 80, 300 ids, no bias
    model = build_model(arch, LORA, jnp.bfloat16)
    arrays = abstract(model, TARGETS["cpu"].mesh(), SMALL, SHORT)
    layer = 2 * 48 * 48 + 2 * 16 * 48 + 3 * 80 * 48 + 2 * 48
    assert bytes_of(arrays.base) == 2 * (300 * 48 + 48 + 2 * layer)
    adapter = 4 * 2 * 16 * (2 * (48 + 48) + 2 * (48 + 16) + 3 * (48 + 80))
    assert bytes_of(arrays.lora) == adapter
    assert bytes_of(arrays.opt_state) == 2 * adapter + 4  # two moments and the count
    assert bytes_of(arrays.cache) == 4 * 2 * 2 * 3 * 16 * 48  # layers, keys and values, slots, head, 3 blocks of 16


def test_a_recurrent_state_is_kept_three_times():
    arch = tiny_architecture("qwen3_5_text", vocab_size=30)
    arrays = abstract(build_model(arch, LORA, jnp.bfloat16), TARGETS["cpu"].mesh(), SMALL, SHORT)
    state = 3 * (3 * (2 * 2 * 6 + 4 * 10) + 4 * 6 * 10)  # slots; inputs of 3 tokens, memories of 4 heads
    assert bytes_of(arrays.cache) == 4 * (3 * state + 2 * 3 * 16 * 48)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("plan") / "plan.json"
    names = "extend,fork,embed,forward,backward"
    main(["--size=tiny", "--target=cpu", "--slots=3", "--tokens=512", f"--only={names}", f"--out={out}"])
    return json.loads(out.read_text())


def test_the_cache_is_updated_in_place(written):
    cache = written["held"]["cache"]
    assert cache == 4 * 2 * 2 * 3 * 16 * 512
    for name in ("extend", "fork"):
        program = written["sampler"][name]
        assert cache == program["aliased"] <= program["outputs"] < cache + 1000


def test_programs_of_layers_take_the_layer_and_its_adapter(written):
    layer = 2 * (2 * 48 * 48 + 2 * 16 * 48 + 3 * 80 * 48 + 2 * 48)
    adapter, hidden = written["learning"]["gradients"] // 2, 4 * 512 * 48
    forward, backward = (written["learner"][name] for name in ("forward 0", "backward 0"))
    assert forward["arguments"] == layer + adapter + hidden + 4 * 2 * 512  # positions and segments
    assert hidden <= forward["outputs"] < hidden + 100
    assert backward["aliased"] == adapter + hidden  # gradients are added up in place


def test_the_total_is_what_is_held_and_the_hungrier_half():
    sampler = {"extend": Program(outputs=90, aliased=80, temporaries=5), "fork": Program(temporaries=7)}
    learner = {"forward 0": Program(outputs=4, temporaries=6)}
    assert Plan({"base": 100, "cache": 80}, {"gradients": 4}, sampler, learner).total == 180 + 15
    assert Plan({"base": 100, "cache": 80}, {"gradients": 6}, sampler, learner).total == 180 + 16


@pytest.mark.parametrize(("size", "weights"), [("0.5b", 494_032_768), ("4b", 4_205_751_296), ("20b", 20_914_757_184)])
def test_the_planned_shapes_have_their_published_sizes(size, weights):
    assert sum(map(np.prod, tensor_shapes(SHAPES[size]).values())) == weights


def test_experts_are_planned_packed_where_they_are_published_so():
    arch = tiny_architecture("gpt_oss", vocab_size=30, d_model=64)
    made = plan(arch, TARGETS["cpu"], SMALL, SHORT, only=["embed"])
    shapes = tensor_shapes(arch)
    experts = [shape for name, shape in shapes.items() if name.endswith(("gate_up_proj", "down_proj"))]
    packed = sum(map(np.prod, experts))
    assert (
        made.held["base"] == 2 * (sum(map(np.prod, shapes.values())) - packed) + packed * 17 // 32
    )  # 4 bits and scales
