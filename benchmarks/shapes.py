"""The models that are measured: published shapes with random weights, since speed does not depend on what weights hold.

LoRA is on all linears with a non-zero B, so that no product with zeros can be skipped.

python -m benchmarks.shapes 4b FOLDER writes the config.json of one, which is all that --mode=plan needs of a model.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.architecture import Architecture, Clamp, DeltaNet, Experts, Rope, yarn_attention_factor
from jaxsearchrl.models.decoder import Model, Weights, build_model, init_lora
from jaxsearchrl.models.hf_config import architecture_to_hf
from jaxsearchrl.models.tiny import tiny_architecture

_QWEN = Architecture(  # Qwen/Qwen2.5-0.5B
    family="qwen2",
    vocab_size=151936,
    d_model=896,
    layers=24,
    heads=14,
    kv_heads=2,
    head_dim=64,
    mlp_dim=4864,
    norm_eps=1e-6,
    tied=True,
    qkv_bias=True,
    o_bias=False,
    mlp_bias=False,
    max_positions=32768,
    rope=Rope(theta=1000000.0),
)
SHAPES = {
    "tiny": tiny_architecture("llama", vocab_size=300),
    "135m": Architecture(  # HuggingFaceTB/SmolLM2-135M
        family="llama",
        vocab_size=49152,
        d_model=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        mlp_dim=1536,
        norm_eps=1e-5,
        tied=True,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        max_positions=8192,
        rope=Rope(theta=100000.0),
    ),
    "0.5b": _QWEN,
    "1.5b": replace(_QWEN, d_model=1536, layers=28, heads=12, head_dim=128, mlp_dim=8960),  # Qwen/Qwen2.5-1.5B
    "3b": replace(_QWEN, d_model=2048, layers=36, heads=16, head_dim=128, mlp_dim=11008),  # Qwen/Qwen2.5-3B
    "4b": Architecture(  # the text part of Qwen/Qwen3.5-4B; theta is assumed, and no size follows from it
        family="qwen3_5_text",
        vocab_size=248320,
        d_model=2560,
        layers=32,
        heads=16,
        kv_heads=4,
        head_dim=256,
        mlp_dim=9216,
        norm_eps=1e-6,
        tied=True,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        max_positions=262144,
        rope=Rope(theta=10000000.0, share=0.25),
        qk_norm=True,
        layer_kinds=tuple("full_attention" if i % 4 == 3 else "linear_attention" for i in range(32)),
        delta=DeltaNet(key_heads=16, value_heads=32, key_dim=128, value_dim=128, kernel=4),
        output_gate=True,
        centred_norms=True,
    ),
    "20b": Architecture(  # openai/gpt-oss-20b
        family="gpt_oss",
        vocab_size=201088,
        d_model=2880,
        layers=24,
        heads=64,
        kv_heads=8,
        head_dim=64,
        mlp_dim=2880,
        norm_eps=1e-5,
        tied=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=False,
        max_positions=131072,
        rope=Rope(
            theta=150000.0,
            kind="yarn",
            factor=32.0,
            original_positions=4096,
            truncate=False,
            attention_factor=yarn_attention_factor(32.0),
        ),
        experts=Experts(count=32, chosen=4, width=2880, normalised=True, fused=True, clamp=Clamp(7.0, 1.702)),
        layer_kinds=tuple("full_attention" if i % 2 else "sliding_attention" for i in range(24)),
        window=128,
        sinks=True,
    ),
}


def random_model(size: str) -> tuple[Model, Weights, Weights]:
    """The model of a shape, its base weights (float32) and its adapter, drawn from a fixed seed."""
    model = build_model(SHAPES[size], LoraConfig())
    rng = np.random.default_rng(0)

    def draw(name: str, shape: tuple[int, ...]) -> jnp.ndarray:
        values = rng.standard_normal(shape, np.float32)
        if name.endswith("norm.weight"):
            return jnp.asarray(1 + 0.1 * values)
        if name.endswith(".bias"):
            return jnp.asarray(0.1 * values)
        return jnp.asarray(values / np.float32(np.sqrt(shape[-1])))

    base = {name: draw(name, spec.shape) for name, spec in model.specs.items()}
    lora = {
        name: jnp.asarray(rng.standard_normal(value.shape, np.float32) * 0.01) if name.endswith("lora_b") else value
        for name, value in init_lora(model, 0).items()
    }
    return model, base, lora


def write_config(size: str, folder: Path) -> None:
    """config.json of a shape, as its checkpoint would have it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(architecture_to_hf(SHAPES[size]), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes")
    parser.add_argument("size", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    write_config(**vars(parser.parse_args()))
