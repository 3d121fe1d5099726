"""Weights cut over a mesh: which axes, and that what is computed stays what it was.

Eight devices need a process of their own (`python tests/models/test_sharding.py`), which reports.
"""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.architecture import DeltaNet, Experts, Rope
from jaxsearchrl.models.decoder import build_model, forward, init_lora
from jaxsearchrl.models.sharding import cache_shardings, lora_shardings, shardings
from jaxsearchrl.models.state import Packed, Slots, empty_cache
from jaxsearchrl.models.tiny import tiny_architecture

ROOT = Path(__file__).parents[2]
ATTENTION = {"d_model": 32, "heads": 8, "kv_heads": 4, "head_dim": 16, "mlp_dim": 48, "vocab_size": 64}
MODELS = {
    "dense": ("qwen2", ATTENTION),
    "experts": ("qwen3_moe", {**ATTENTION, "experts": Experts(count=8, chosen=2, width=24, normalised=True)}),
    "delta": (
        "qwen3_5_text",
        {**ATTENTION, "rope": Rope(share=0.25), "delta": DeltaNet(8, 8, key_dim=8, value_dim=8, kernel=4)},
    ),
}


def model_of(name):
    family, sizes = MODELS[name]
    return build_model(tiny_architecture(family, **sizes), LoraConfig(rank=2))


def cut(sharding) -> tuple:
    return tuple(sharding.spec)


def test_heads_columns_and_vocabulary_are_cut_and_kv_heads_stay_whole_where_they_are_too_few():
    found = shardings(model_of("dense"), AbstractMesh((8,), ("tensor",)))
    assert cut(found["embed_tokens"]) == ("tensor", None)
    assert cut(found["layers.0.self_attn.q_proj.weight"]) == ("tensor", None)
    assert cut(found["layers.0.self_attn.q_proj.bias"]) == ("tensor",)
    # 4 heads of 16 columns: 64 columns could be cut in 8, but that would be through heads.
    assert cut(found["layers.0.self_attn.k_proj.weight"]) == (None, None)
    assert cut(found["layers.0.self_attn.o_proj.weight"]) == (None, "tensor")
    assert cut(found["layers.1.mlp.down_proj.weight"]) == (None, "tensor")
    assert cut(found["layers.1.input_layernorm.weight"]) == (None,)


def test_experts_are_cut_by_what_they_give():
    model = model_of("experts")
    mesh = AbstractMesh((4,), ("tensor",))
    assert cut(shardings(model, mesh)["layers.1.mlp.experts.up_proj.weight"]) == (None, None, "tensor")
    assert cut(lora_shardings(model, mesh)["layers.1.mlp.experts.up_proj.lora_a"]) == (None, None, None)
    assert cut(lora_shardings(model, mesh)["layers.1.mlp.experts.up_proj.lora_b"]) == (None, None, "tensor")


def test_packed_experts_are_cut_as_others_are():
    arch = tiny_architecture("gpt_oss", vocab_size=64, d_model=64)
    model, mesh = build_model(arch, LoraConfig(rank=2), packed_experts=True), AbstractMesh((4,), ("tensor",))
    assert cut(shardings(model, mesh)["layers.1.mlp.experts.down_proj.blocks"]) == (None, "tensor", None, None)
    assert cut(lora_shardings(model, mesh)["layers.1.mlp.experts.down_proj.lora_b"]) == (None, None, "tensor")


def test_the_adapter_is_cut_where_its_linear_is_and_not_by_rank():
    found = lora_shardings(model_of("dense"), AbstractMesh((2,), ("tensor",)))  # rank 2 could be cut
    assert cut(found["layers.0.mlp.up_proj.lora_a"]) == (None, None)
    assert cut(found["layers.0.mlp.up_proj.lora_b"]) == (None, "tensor")
    assert cut(found["layers.0.mlp.down_proj.lora_a"]) == ("tensor", None)
    assert cut(found["layers.0.mlp.down_proj.lora_b"]) == (None, None)


def test_a_mesh_without_the_axis_cuts_nothing():
    found = shardings(model_of("dense"), AbstractMesh((8,), ("data",)))
    assert {axis for sharding in found.values() for axis in cut(sharding)} == {None}


def test_the_cache_is_cut_by_heads():
    model = model_of("delta")
    recurrent, attention = jax.eval_shape(
        lambda: empty_cache(model.arch, 2, 16, jnp.dtype(jnp.float32), block=8, chunk=8)
    )
    mesh = AbstractMesh((4,), ("tensor",))
    assert cache_shardings(attention, model.arch, mesh).keys.spec == PartitionSpec(None, "tensor", None)
    assert cache_shardings(recurrent, model.arch, mesh).memory.spec == PartitionSpec(None, "tensor", None, None)


@pytest.fixture(scope="module")
def report():
    command = [sys.executable, __file__]
    process = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dense", "experts", "delta", "slots of delta", "gradient of dense"])
def test_sharded_weights_compute_what_whole_ones_do(report, what):
    assert report[what] < 1e-5


def compare() -> dict[str, float]:
    """Largest differences between sharded and whole weights, as shares of the largest value."""
    mesh = Mesh(np.array(jax.devices()), ("tensor",))
    rng = np.random.default_rng(0)
    draw = lambda shape: jnp.asarray(0.3 * rng.standard_normal(shape, np.float32))  # noqa: E731
    tokens = rng.integers(0, ATTENTION["vocab_size"], (2, 12), np.int32)
    places = jnp.broadcast_to(jnp.arange(12), (2, 12))

    def furthest(program, arguments, laid) -> float:
        whole, parts = (jax.tree.leaves(jax.jit(program)(*x)) for x in (arguments, laid))
        differences = [np.abs(np.asarray(x) - y).max() / np.abs(y).max() for x, y in zip(parts, whole, strict=True)]
        return float(max(differences))

    found = {}
    for name in MODELS:
        model = model_of(name)
        weights = ({key: draw(spec.shape) for key, spec in model.specs.items()}, init_lora(model, 0))
        weights = (weights[0], {key: draw(value.shape) for key, value in weights[1].items()})
        laid = jax.device_put(weights, (shardings(model, mesh), lora_shardings(model, mesh)))
        assert any(len({str(part.index) for part in x.addressable_shards}) == 8 for x in laid[0].values())

        def packed(base, lora, model=model):
            return forward(model, base, lora, tokens, Packed(places, jnp.ones_like(places)))[0]

        def slots(base, lora, layers, model=model):
            rows, blocks = jnp.array([1, 0]), jnp.int32(2)
            state = Slots(layers, rows, places, blocks, capacity=16, block=8, all_slots=False)
            return forward(model, base, lora, tokens, state)

        def gradient(base, lora, packed=packed):
            return jax.grad(lambda lora: (packed(base, lora) ** 2).mean())(lora)

        found[name] = furthest(packed, weights, laid)
        if name == "dense":
            found["gradient of dense"] = furthest(gradient, weights, laid)
        if name == "delta":
            cache = empty_cache(model.arch, 2, 16, jnp.dtype(jnp.float32), block=8, chunk=8)
            cut_cache = tuple(jax.device_put(x, cache_shardings(x, model.arch, mesh)) for x in cache)
            found["slots of delta"] = furthest(slots, (*weights, cache), (*laid, cut_cache))
    return found


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    print(json.dumps(compare()))
