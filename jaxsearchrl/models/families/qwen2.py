"""Qwen2 and Qwen2.5 (arXiv:2407.10671): queries, keys and values have biases."""

from collections.abc import Mapping
from typing import Any

from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.families import llama


def fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a Qwen2's config.json says beyond the common keys, as fields of `Architecture`."""
    return {**llama.fields(config, where), "qkv_bias": True, "o_bias": False, "mlp_bias": False}


def keys(arch: Architecture) -> dict[str, Any]:
    """The reverse of `fields`."""
    del arch
    return {"architectures": ["Qwen2ForCausalLM"]}
