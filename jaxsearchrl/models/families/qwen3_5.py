"""Qwen3.5, the text part, dense and with experts: most layers have a recurrent state in the place of attention.

The rest have attention with normalised queries and keys of which a part is rotated, weighed by a sigmoid.
"""

from collections.abc import Mapping
from typing import Any

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture, DeltaNet, Experts, LayerKind
from jaxsearchrl.models.config_values import integer, layer_kinds
from jaxsearchrl.models.hf_rope import rope_from_hf, rope_to_hf


def fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a Qwen3.5's config.json says beyond the common keys, as fields of `Architecture`."""
    layers, every = integer(config, "num_hidden_layers", where), integer(config, "full_attention_interval", where, 4)
    pattern: tuple[LayerKind, ...] = tuple(
        "linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)
    )
    kinds = layer_kinds(config, where, pattern)
    if "sliding_attention" in kinds:
        raise ConfigError(f"{where}: layer_types has 'sliding_attention', which this family does not have")
    experts = None
    if config["model_type"] == "qwen3_5_moe_text":
        experts = Experts(
            count=integer(config, "num_experts", where),
            chosen=integer(config, "num_experts_per_tok", where),
            width=integer(config, "moe_intermediate_size", where),
            normalised=True,
            fused=True,
            shared_width=integer(config, "shared_expert_intermediate_size", where),
        )
    return {
        "head_dim": integer(config, "head_dim", where, 256),
        "mlp_dim": experts.width if experts else integer(config, "intermediate_size", where),
        "rope": rope_from_hf(config, where, partial=True, default_share=0.25),
        "qk_norm": True,
        "experts": experts,
        "layer_kinds": kinds,
        "delta": DeltaNet(
            key_heads=integer(config, "linear_num_key_heads", where, 16),
            value_heads=integer(config, "linear_num_value_heads", where, 32),
            key_dim=integer(config, "linear_key_head_dim", where, 128),
            value_dim=integer(config, "linear_value_head_dim", where, 128),
            kernel=integer(config, "linear_conv_kernel_dim", where, 4, least=2),
        ),
        "output_gate": True,
        "centred_norms": True,
    }


def keys(arch: Architecture) -> dict[str, Any]:
    """The reverse of `fields`."""
    assert arch.delta is not None
    config = {
        "architectures": ["Qwen3_5MoeForCausalLM" if arch.experts else "Qwen3_5ForCausalLM"],
        "rope_parameters": {**rope_to_hf(arch.rope), "partial_rotary_factor": arch.rope.share},
        "layer_types": list(arch.layer_kinds),
        "linear_num_key_heads": arch.delta.key_heads,
        "linear_num_value_heads": arch.delta.value_heads,
        "linear_key_head_dim": arch.delta.key_dim,
        "linear_value_head_dim": arch.delta.value_dim,
        "linear_conv_kernel_dim": arch.delta.kernel,
    }
    if arch.experts:
        config |= {
            "num_experts": arch.experts.count,
            "num_experts_per_tok": arch.experts.chosen,
            "moe_intermediate_size": arch.experts.width,
            "shared_expert_intermediate_size": arch.experts.shared_width,
        }
    return config
