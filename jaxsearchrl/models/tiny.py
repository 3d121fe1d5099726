"""A tiny random checkpoint as a Hugging Face folder, for tests and dry runs; its sizes are odd on purpose."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxsearchrl.models.architecture import (
    Architecture,
    Clamp,
    DeltaNet,
    Experts,
    Family,
    Rope,
    check_architecture,
    tensor_shapes,
)
from jaxsearchrl.models.hf_config import architecture_to_hf


def tiny_architecture(family: Family, *, vocab_size: int, **overrides: Any) -> Architecture:
    """Two layers of width 48. `overrides` replace fields of `Architecture` (layers=3, tied=False, rope=Rope(...))."""
    plain = Architecture(
        family=family,
        vocab_size=vocab_size,
        d_model=48,
        layers=overrides.get("layers", 2),
        heads=3,
        kv_heads=1,
        head_dim=16,
        mlp_dim=80,
        norm_eps=1e-5,
        tied=True,
        qkv_bias=family == "qwen2",
        o_bias=False,
        mlp_bias=False,
        max_positions=4096,
        rope=Rope(),
        qk_norm=family.startswith("qwen3"),
    )
    arch = replace(plain, **_own(plain))
    return check_architecture(replace(arch, **overrides), "tiny")


def _own(arch: Architecture) -> dict[str, Any]:
    """What a family has of its own."""
    if arch.family == "qwen3_moe":
        return {"experts": Experts(count=5, chosen=2, width=24, normalised=True), "dense_layers": (0,)}
    if arch.family == "gpt_oss":
        return {
            "tied": False,
            "qkv_bias": True,
            "o_bias": True,
            "mlp_dim": 32,
            "experts": Experts(count=5, chosen=2, width=32, normalised=True, fused=True, clamp=Clamp(1.0, 1.702)),
            "layer_kinds": tuple("full_attention" if i % 2 else "sliding_attention" for i in range(arch.layers)),
            "window": 7,
            "sinks": True,
        }
    if not arch.family.startswith("qwen3_5"):
        return {}
    own: dict[str, Any] = {
        "rope": Rope(share=0.25),
        "layer_kinds": tuple("linear_attention" if i % 2 == 0 else "full_attention" for i in range(arch.layers)),
        "delta": DeltaNet(key_heads=2, value_heads=4, key_dim=6, value_dim=10, kernel=4),
        "output_gate": True,
        "centred_norms": True,
    }
    if arch.family == "qwen3_5_moe_text":
        own["experts"] = Experts(count=5, chosen=2, width=24, normalised=True, fused=True, shared_width=20)
        own["mlp_dim"] = 24
    return own


def write_tiny_checkpoint(
    folder: str | Path, family: Family, *, vocab_size: int, seed: int = 0, shards: int = 1, **overrides: Any
) -> Architecture:
    """Writes config.json and float32 safetensors (with an index when `shards` > 1) drawn from `seed`."""
    arch = tiny_architecture(family, vocab_size=vocab_size, **overrides)
    generator = np.random.default_rng(seed)
    tensors = {name: _draw(generator, arch, name, shape) for name, shape in tensor_shapes(arch).items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(architecture_to_hf(arch), indent=2), encoding="utf-8")
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return arch
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return arch


def _draw(generator: np.random.Generator, arch: Architecture, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Norms near 1, biases small, matrices scaled by fan-in, so that activations and logits are of order 1."""
    values = generator.standard_normal(shape, dtype=np.float32)
    if name.endswith("norm.weight"):
        return 0.1 * values if arch.centred_norms and not name.endswith("linear_attn.norm.weight") else 1 + 0.1 * values
    return 0.1 * values if len(shape) == 1 else values / np.float32(np.sqrt(shape[-1]))
