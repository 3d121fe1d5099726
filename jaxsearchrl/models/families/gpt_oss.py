"""gpt-oss (arXiv:2508.10925): every other layer sees a window only, heads have sinks, all MLPs are experts."""

from collections.abc import Mapping
from typing import Any

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture, Clamp, Experts
from jaxsearchrl.models.config_values import integer, layer_kinds, number


def fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a gpt-oss's config.json says beyond the common keys, as fields of `Architecture`."""
    layers = range(integer(config, "num_hidden_layers", where))
    kinds = layer_kinds(config, where, tuple("full_attention" if i % 2 else "sliding_attention" for i in layers))
    if "linear_attention" in kinds:
        raise ConfigError(f"{where}: layer_types has 'linear_attention', which this family does not have")
    chosen = "num_experts_per_tok" if config.get("num_experts_per_tok") is not None else "experts_per_token"
    biased = config.get("attention_bias") is not False
    return {
        "head_dim": integer(config, "head_dim", where, 64),
        "mlp_dim": integer(config, "intermediate_size", where),
        "norm_eps": number(config, "rms_norm_eps", where, 1e-5, above=0),
        "qkv_bias": biased,
        "o_bias": biased,
        "experts": Experts(
            count=integer(config, "num_local_experts", where),
            chosen=integer(config, chosen, where),
            width=integer(config, "intermediate_size", where),
            normalised=True,
            fused=True,
            clamp=Clamp(
                limit=number(config, "swiglu_limit", where, 7.0, above=0),
                slope=number(config, "swiglu_alpha", where, 1.702),
            ),
        ),
        "layer_kinds": kinds,
        "window": integer(config, "sliding_window", where, 128),
        "sinks": True,
    }


def keys(arch: Architecture) -> dict[str, Any]:
    """The reverse of `fields`."""
    assert arch.experts is not None
    assert arch.experts.clamp is not None
    return {
        "architectures": ["GptOssForCausalLM"],
        "layer_types": list(arch.layer_kinds),
        "sliding_window": arch.window,
        "num_local_experts": arch.experts.count,
        "num_experts_per_tok": arch.experts.chosen,
        "swiglu_limit": arch.experts.clamp.limit,
        "swiglu_alpha": arch.experts.clamp.slope,
    }
