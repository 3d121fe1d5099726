"""Qwen3, dense and with experts (arXiv:2505.09388): queries and keys are normalised."""

from collections.abc import Mapping
from typing import Any

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture, Experts
from jaxsearchrl.models.config_values import integer
from jaxsearchrl.models.families.attention import only_full_attention


def fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a Qwen3's config.json says beyond the common keys, as fields of `Architecture`."""
    only_full_attention(config, where)
    experts = _experts(config, where) if config["model_type"] == "qwen3_moe" else {}
    return {
        "head_dim": integer(config, "head_dim", where, 128),
        "mlp_dim": integer(config, "intermediate_size", where),
        "qk_norm": True,
        **experts,
    }


def keys(arch: Architecture) -> dict[str, Any]:
    """The reverse of `fields`."""
    if not arch.experts:
        return {"architectures": ["Qwen3ForCausalLM"]}
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": arch.experts.count,
        "num_experts_per_tok": arch.experts.chosen,
        "moe_intermediate_size": arch.experts.width,
        "norm_topk_prob": arch.experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(arch.dense_layers),
    }


def _experts(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The experts, and the layers that have none."""
    named = "num_experts" if config.get("num_local_experts") is None else "num_local_experts"  # transformers 5
    experts = Experts(
        count=integer(config, named, where),
        chosen=integer(config, "num_experts_per_tok", where),
        width=integer(config, "moe_intermediate_size", where),
        normalised=bool(config.get("norm_topk_prob", False)),
    )
    step, dense = integer(config, "decoder_sparse_step", where, 1), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ConfigError(f"{where}: mlp_only_layers is {dense!r}, but must be a list of layer numbers")
    layers = range(integer(config, "num_hidden_layers", where))
    return {"experts": experts, "dense_layers": tuple(i for i in layers if i in dense or (i + 1) % step)}
