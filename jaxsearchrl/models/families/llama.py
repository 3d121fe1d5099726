"""Llama and SmolLM2 (Touvron et al., 2023, arXiv:2302.13971; grouped queries since arXiv:2307.09288)."""

from collections.abc import Mapping
from typing import Any

from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.config_values import integer
from jaxsearchrl.models.families.attention import only_full_attention


def fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a Llama's config.json says beyond the common keys, as fields of `Architecture`."""
    only_full_attention(config, where)
    head_dim = integer(config, "hidden_size", where) // integer(config, "num_attention_heads", where)
    return {
        "head_dim": integer(config, "head_dim", where, head_dim),
        "mlp_dim": integer(config, "intermediate_size", where),
        "mlp_bias": bool(config.get("mlp_bias", False)),
    }


def keys(arch: Architecture) -> dict[str, Any]:
    """The reverse of `fields`."""
    return {"architectures": ["LlamaForCausalLM"], "mlp_bias": arch.mlp_bias}
