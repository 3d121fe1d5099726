"""config.json of Hugging Face, read into an `Architecture` and written from one.

What families have in common stands here, what is one family's own in `families/`. A value that would change the forward
pass and that we do not compute is refused by its key; nothing is ignored in silence.
"""

from collections.abc import Mapping
from typing import Any, get_args

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture, Family, check_architecture
from jaxsearchrl.models.config_values import eos_ids, integer, number
from jaxsearchrl.models.families import gpt_oss, llama, qwen2, qwen3, qwen3_5
from jaxsearchrl.models.hf_rope import rope_from_hf, rope_to_hf

FAMILIES: dict[Family, Any] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe_text": qwen3_5,
    "gpt_oss": gpt_oss,
}
"""Module of each family: `fields(config, where)` reads what is its own, `keys(arch)` writes it."""

WITH_IMAGES: dict[str, Family] = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Models that see, of which we run the text part."""


def architecture_from_hf(config: Mapping[str, Any], where: str) -> Architecture:
    """Reads the content of a config.json; `where` names the file in errors.

    Raises ConfigError naming the key that is missing, of a wrong type, or of a kind that we do not compute.
    """
    named = config.get("model_type")
    if named in WITH_IMAGES:
        text = config.get("text_config")
        if not isinstance(text, Mapping):
            raise ConfigError(f"{where}: text_config is {text!r}, but must be an object")
        outer = {key: config[key] for key in ("eos_token_id", "tie_word_embeddings") if config.get(key) is not None}
        config, where = {**text, **outer, "model_type": WITH_IMAGES[named]}, f"{where}: text_config"
    family: Any = config.get("model_type")
    if family not in FAMILIES:
        known = ", ".join((*get_args(Family), *WITH_IMAGES))
        raise ConfigError(f"{where}: model_type {named!r} is not supported; known: {known}")
    _refuse_unsupported(config, where)
    heads = integer(config, "num_attention_heads", where)
    common: dict[str, Any] = {
        "vocab_size": integer(config, "vocab_size", where),
        "d_model": integer(config, "hidden_size", where),
        "layers": integer(config, "num_hidden_layers", where),
        "heads": heads,
        "kv_heads": integer(config, "num_key_value_heads", where, heads),
        "norm_eps": number(config, "rms_norm_eps", where, 1e-6, above=0),
        "tied": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": bool(config.get("attention_bias", False)),
        "o_bias": bool(config.get("attention_bias", False)),
        "mlp_bias": False,
        "max_positions": integer(config, "max_position_embeddings", where),
        "eos_ids": eos_ids(config.get("eos_token_id"), where),
    }
    own = FAMILIES[family].fields(config, where)
    if "rope" not in own:
        own["rope"] = rope_from_hf(config, where)
    return check_architecture(Architecture(family=family, **{**common, **own}), where)


def architecture_to_hf(arch: Architecture) -> dict[str, Any]:
    """The content of a config.json from which `architecture_from_hf` and transformers 5 read this architecture."""
    config = {
        "model_type": arch.family,
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.d_model,
        "num_hidden_layers": arch.layers,
        "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.kv_heads,
        "head_dim": arch.head_dim,
        "intermediate_size": arch.mlp_dim,
        "hidden_act": "silu",
        "rms_norm_eps": arch.norm_eps,
        "tie_word_embeddings": arch.tied,
        "attention_bias": arch.qkv_bias,
        "max_position_embeddings": arch.max_positions,
        "rope_parameters": rope_to_hf(arch.rope),
        "eos_token_id": list(arch.eos_ids) or None,
    }
    return {**config, **FAMILIES[arch.family].keys(arch)}


def check_describable(arch: Architecture, where: str) -> None:
    """Raises ConfigError for an architecture, as a .gguf file may have it, that no config.json describes."""
    if architecture_from_hf(architecture_to_hf(arch), where) != arch:
        raise ConfigError(
            f"{where}: its biases or norms are not those of family {arch.family!r} in a Hugging Face config"
        )


def _refuse_unsupported(config: Mapping[str, Any], where: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"{where}: hidden_act {activation!r} is not supported; only 'silu' is")
    quantised = config.get("quantization_config")
    mxfp4 = isinstance(quantised, Mapping) and quantised.get("quant_method") == "mxfp4"
    if quantised and not (mxfp4 and config.get("model_type") == "gpt_oss"):
        raise ConfigError(
            f"{where}: quantization_config is set, and only gpt_oss's mxfp4 can be read; "
            "use the unquantised checkpoint or a .gguf file"
        )
