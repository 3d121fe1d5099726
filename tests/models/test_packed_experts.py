"""gpt-oss's experts in MXFP4: kept packed or dequantised at load, the model is the same."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Clamp, Experts
from jaxsearchrl.models.decoder import build_model, forward, head_of, init_lora
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.mxfp4 import dequantise, quantise
from jaxsearchrl.models.state import Packed
from jaxsearchrl.models.tiny import write_tiny_checkpoint

SIZES = {"vocab_size": 61, "d_model": 64, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_dim": 32}
EXPERTS = {"experts": Experts(5, 2, 32, True, fused=True, clamp=Clamp(2.0, 1.702))}
TOKENS = jnp.asarray(np.random.default_rng(7).integers(0, 61, (2, 20)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint in MXFP4, and one of the floats that its bytes stand for."""
    floats, packed = tmp_path_factory.mktemp("floats"), tmp_path_factory.mktemp("packed")
    write_tiny_checkpoint(floats, "gpt_oss", **SIZES, **EXPERTS)
    tensors = load_file(floats / "model.safetensors")
    stored = dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales = quantise(stored.pop(name).swapaxes(1, 2))
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name] = np.ascontiguousarray(dequantise(blocks, scales, np.float32).swapaxes(1, 2))
    save_file(tensors, floats / "model.safetensors")
    save_file(stored, packed / "model.safetensors")
    config = json.loads((floats / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    return floats, packed


def load(folder, packed):
    checkpoint = open_checkpoint(folder)
    model = build_model(checkpoint.architecture, LoraConfig(rank=2), packed_experts=packed)
    return model, load_base(model, checkpoint)


def run(folder, packed):
    """Logits, and the gradient of their sum of squares by the adapter."""
    model, base = load(folder, packed)
    rng = np.random.default_rng(1)
    lora = {n: v + jnp.asarray(rng.normal(size=v.shape) * 0.1, v.dtype) for n, v in init_lora(model, 0).items()}
    state = Packed(jnp.broadcast_to(jnp.arange(20), (2, 20)), jnp.ones((2, 20), jnp.int32))

    def logits(lora, base):
        return forward(model, base, lora, TOKENS, state)[0] @ head_of(base).T

    gradient = jax.jit(jax.grad(lambda lora, base: (logits(lora, base) ** 2).mean()))(lora, base)
    return jax.jit(logits)(lora, base), gradient


@pytest.mark.slow
def test_packed_dequantised_and_floats_compute_the_same(folders):
    floats, packed = folders
    expected = run(floats, False)
    for kept in (False, True):
        chex.assert_trees_all_close(run(packed, kept), expected, atol=1e-5)


def test_packed_experts_stay_packed(folders):
    _, base = load(folders[1], True)
    blocks = base["layers.0.mlp.experts.gate_up_proj.blocks"]
    assert (blocks.dtype, blocks.shape) == (jnp.uint8, (5, 64, 2, 16))
    assert base["layers.0.mlp.experts.down_proj.scales"].shape == (5, 64, 1)
    assert "layers.0.mlp.experts.down_proj.weight" not in base


def test_what_cannot_be_packed_is_refused(folders, tmp_path):
    with pytest.raises(ConfigError, match=r"\.down_proj is not stored in MXFP4: set model\.packed_experts=false"):
        load(folders[0], True)
    arch = write_tiny_checkpoint(tmp_path, "qwen3_moe", vocab_size=61)
    with pytest.raises(ConfigError, match=r"model\.packed_experts is for gpt_oss"):
        build_model(arch, LoraConfig(), packed_experts=True)


def test_only_mxfp4_is_read(folders, tmp_path):
    config = json.loads((folders[1] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ConfigError, match="quantization_config"):
        open_checkpoint(tmp_path)


@pytest.mark.parity
def test_transformers_computes_the_same_from_the_packed_checkpoint(folders, torch):
    transformers = pytest.importorskip("transformers")
    config = transformers.Mxfp4Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folders[1], dtype=torch.float32, attn_implementation="eager", quantization_config=config
    )
    with torch.no_grad():
        theirs = model(torch.from_numpy(np.asarray(TOKENS))).logits.numpy()
    checkpoint = open_checkpoint(folders[1])
    model = build_model(checkpoint.architecture, LoraConfig(rank=0), packed_experts=True)
    base = load_base(model, checkpoint)
    state = Packed(jnp.broadcast_to(jnp.arange(20), (2, 20)), jnp.ones((2, 20), jnp.int32))
    hidden = jax.jit(lambda base: forward(model, base, {}, TOKENS, state)[0])(base)
    np.testing.assert_allclose(hidden @ head_of(base).T, theirs, atol=1e-4)
