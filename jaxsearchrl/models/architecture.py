"""What a decoder looks like: one frozen, hashable description for all the families that we run.

`architecture_from_hf` reads a Hugging Face config.json, `architecture_to_hf` writes one. A value that would change the
forward pass and that we do not compute is refused by its key; nothing is ignored in silence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from jaxsearchrl.errors import ConfigError

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True)
class Rope:
    """Rotary positions. Fields beyond `theta` and `kind` count only for the kinds that read them.

    factor: how many times the context was stretched. original_positions: the context before that, in tokens.
    low_freq_factor, high_freq_factor: llama3. beta_fast, beta_slow: yarn, in rotations over the original context.
    attention_factor: yarn, multiplies cosine and sine.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0


@dataclass(frozen=True)
class Experts:
    """MLPs of which each token takes a few (Shazeer et al., 2017, arXiv:1701.06538).

    count: how many there are. chosen: how many a token takes. width: of each. normalised: whether the weights of the
    chosen ones are made to sum to 1.
    """

    count: int
    chosen: int
    width: int
    normalised: bool


@dataclass(frozen=True)
class Architecture:
    """A decoder's static description. `max_positions` is its context in tokens; `eos_ids` end a turn or a text.

    qk_norm: whether queries and keys are normalised, head by head, before they are rotated. experts: what stands in the
    place of the MLP, in all layers but those of `dense_layers`.
    """

    family: Family
    vocab_size: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_dim: int
    norm_eps: float
    tied: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    max_positions: int
    rope: Rope
    eos_ids: tuple[int, ...] = ()
    qk_norm: bool = False
    experts: Experts | None = None
    dense_layers: tuple[int, ...] = ()

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer has experts."""
        return self.experts is not None and layer not in self.dense_layers


def check_architecture(arch: Architecture, where: str) -> Architecture:
    """Returns `arch`. Raises ConfigError when its sizes are impossible together; `where` names the file."""
    if arch.heads % arch.kv_heads:
        raise ConfigError(f"{where}: {arch.heads} query heads cannot share {arch.kv_heads} kv heads evenly")
    if arch.head_dim % 2:
        raise ConfigError(f"{where}: head_dim is {arch.head_dim}, but rotary positions need an even one")
    if arch.experts and arch.experts.chosen > arch.experts.count:
        raise ConfigError(f"{where}: a token takes {arch.experts.chosen} experts, but there are {arch.experts.count}")
    return arch


def linear_shapes(arch: Architecture, layer: int) -> dict[str, tuple[int, int]]:
    """The linears of a layer, which are also what LoRA can apply to: "self_attn.q_proj" -> (out, in).

    Each expert has its own ("mlp.experts.3.up_proj"); the router is none of them.
    """
    d, q, kv = arch.d_model, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    shapes = {
        "self_attn.q_proj": (q, d),
        "self_attn.k_proj": (kv, d),
        "self_attn.v_proj": (kv, d),
        "self_attn.o_proj": (d, q),
    }
    mlps, width = [""], arch.mlp_dim
    if arch.experts and arch.is_sparse(layer):
        mlps, width = [f"experts.{expert}." for expert in range(arch.experts.count)], arch.experts.width
    for mlp in mlps:
        shapes |= {f"mlp.{mlp}{linear}": (width, d) for linear in ("gate_proj", "up_proj")}
        shapes[f"mlp.{mlp}down_proj"] = (d, width)
    return shapes


def has_bias(arch: Architecture, linear: str) -> bool:
    """Whether the linear of that name ("self_attn.q_proj", ...) has a bias."""
    if linear.startswith("mlp."):
        return arch.mlp_bias
    return arch.o_bias if linear == "self_attn.o_proj" else arch.qkv_bias


def tensor_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Hugging Face checkpoint of this architecture: name -> shape, linears as [out, in]."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (arch.vocab_size, arch.d_model),
        "model.norm.weight": (arch.d_model,),
    }
    if not arch.tied:
        shapes["lm_head.weight"] = (arch.vocab_size, arch.d_model)
    for layer in range(arch.layers):
        prefix = f"model.layers.{layer}."
        shapes[f"{prefix}input_layernorm.weight"] = (arch.d_model,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (arch.d_model,)
        if arch.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = (arch.head_dim,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (arch.head_dim,)
        if arch.experts and arch.is_sparse(layer):
            shapes[f"{prefix}mlp.gate.weight"] = (arch.experts.count, arch.d_model)
        for linear, shape in linear_shapes(arch, layer).items():
            shapes[f"{prefix}{linear}.weight"] = shape
            if has_bias(arch, linear):
                shapes[f"{prefix}{linear}.bias"] = shape[:1]
    return shapes


def architecture_from_hf(config: Mapping[str, Any], where: str) -> Architecture:
    """Reads the content of a config.json; `where` names the file in errors.

    Raises ConfigError naming the key that is missing, of a wrong type, or of a kind that we do not compute.
    """
    family: Any = config.get("model_type")
    if family not in get_args(Family):
        raise ConfigError(f"{where}: model_type {family!r} is not supported; known: {', '.join(get_args(Family))}")
    _refuse_unsupported(config, where)
    d_model, heads = integer(config, "hidden_size", where), integer(config, "num_attention_heads", where)
    max_positions = integer(config, "max_position_embeddings", where)
    bias = family != "qwen2" and bool(config.get("attention_bias", False))
    head_dim = 128 if family.startswith("qwen3") else d_model // max(heads, 1)  # where the config does not say
    layers = integer(config, "num_hidden_layers", where)
    experts, dense_layers = _experts_from_hf(config, layers, where) if family == "qwen3_moe" else (None, ())
    arch = Architecture(
        family=family,
        vocab_size=integer(config, "vocab_size", where),
        d_model=d_model,
        layers=layers,
        heads=heads,
        kv_heads=integer(config, "num_key_value_heads", where, heads),
        head_dim=integer(config, "head_dim", where, head_dim),
        mlp_dim=integer(config, "intermediate_size", where),
        norm_eps=number(config, "rms_norm_eps", where, 1e-6, above=0),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        o_bias=bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        max_positions=max_positions,
        rope=_rope_from_hf(config, max_positions, where),
        eos_ids=_eos_ids(config.get("eos_token_id"), where),
        qk_norm=family.startswith("qwen3"),
        experts=experts,
        dense_layers=dense_layers,
    )
    return check_architecture(arch, where)


def architecture_to_hf(arch: Architecture) -> dict[str, Any]:
    """The content of a config.json from which `architecture_from_hf` and transformers 5 read this architecture."""
    rope = arch.rope
    parameters: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind != "default":
        parameters["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = rope.original_positions
    if rope.kind == "llama3":
        parameters |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        parameters |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
        parameters["attention_factor"] = rope.attention_factor
    config = {
        "architectures": [f"{arch.family.title().replace('_', '')}ForCausalLM"],
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
        "max_position_embeddings": arch.max_positions,
        "rope_parameters": parameters,
        "eos_token_id": list(arch.eos_ids) or None,
    }
    if arch.family != "qwen2":
        config["attention_bias"] = arch.qkv_bias
    if arch.family == "llama":
        config["mlp_bias"] = arch.mlp_bias
    if arch.experts:
        config |= {
            "num_experts": arch.experts.count,
            "num_experts_per_tok": arch.experts.chosen,
            "moe_intermediate_size": arch.experts.width,
            "norm_topk_prob": arch.experts.normalised,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(arch.dense_layers),
        }
    return config


def check_describable(arch: Architecture, where: str) -> None:
    """Raises ConfigError for an architecture, as a .gguf file may have it, that no config.json describes."""
    if architecture_from_hf(architecture_to_hf(arch), where) != arch:
        raise ConfigError(
            f"{where}: its biases or norms are not those of family {arch.family!r} in a Hugging Face config"
        )


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln(factor) + 1, the temperature of YaRN (arXiv 2309.00071, equation 22)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _refuse_unsupported(config: Mapping[str, Any], where: str) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"{where}: hidden_act {activation!r} is not supported; only 'silu' is")
    if config.get("use_sliding_window"):
        raise ConfigError(f"{where}: use_sliding_window is true, but only full attention is supported")
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise ConfigError(f"{where}: layer_types is {kinds!r}, but only full_attention is supported")
    quantised = config.get("quantization_config")
    mxfp4 = isinstance(quantised, Mapping) and quantised.get("quant_method") == "mxfp4"
    if quantised and not (mxfp4 and config.get("model_type") == "gpt_oss"):
        raise ConfigError(
            f"{where}: quantization_config is set, and only gpt_oss's mxfp4 can be read; "
            "use the unquantised checkpoint or a .gguf file"
        )
    if config.get("partial_rotary_factor") not in (None, 1.0):
        raise ConfigError(
            f"{where}: partial_rotary_factor {config['partial_rotary_factor']} is not supported; only 1.0 is"
        )


def _experts_from_hf(config: Mapping[str, Any], layers: int, where: str) -> tuple[Experts, tuple[int, ...]]:
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
    return experts, tuple(layer for layer in range(layers) if layer in dense or (layer + 1) % step)


def _rope_from_hf(config: Mapping[str, Any], max_positions: int, where: str) -> Rope:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = config.get(key) or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {key} is {given!r}, but must be an object")
    outside = number(config, "rope_theta", where, 10000.0, above=1)
    where = f"{where}: {key}"
    theta = number(given, "rope_theta", where, outside, above=1)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in get_args(RopeKind):
        raise ConfigError(f"{where}: rope_type {kind!r} is not supported; known: {', '.join(get_args(RopeKind))}")
    read = {"rope_theta", "rope_type", "type", "original_max_position_embeddings"}
    rope: dict[str, Any] = {}
    if kind != "default":
        read.add("factor")
        rope["factor"] = number(given, "factor", where)
        if rope["factor"] < 1:
            raise ConfigError(f"{where}: factor is {rope['factor']}, but must be at least 1")
        original = config.get("original_max_position_embeddings")  # Phi writes it here; transformers prefers it
        given = given if original is None else {**given, "original_max_position_embeddings": original}
        rope["original_positions"] = integer(given, "original_max_position_embeddings", where, max_positions)
    if kind == "llama3":
        read |= {"low_freq_factor", "high_freq_factor"}
        rope["low_freq_factor"] = low = number(given, "low_freq_factor", where)
        rope["high_freq_factor"] = high = number(given, "high_freq_factor", where)
        if high <= low:
            raise ConfigError(f"{where}: high_freq_factor {high} must be above low_freq_factor {low}")
    if kind == "yarn":
        read |= {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"}
        rope["beta_fast"] = number(given, "beta_fast", where, 32.0)
        rope["beta_slow"] = number(given, "beta_slow", where, 1.0)
        scales = number(given, "mscale", where, 0.0), number(given, "mscale_all_dim", where, 0.0)
        factor = yarn_attention_factor(rope["factor"])
        if all(scales):
            factor = yarn_attention_factor(rope["factor"], scales[0]) / yarn_attention_factor(rope["factor"], scales[1])
        rope["attention_factor"] = number(given, "attention_factor", where, factor)
    unknown = {k for k, v in given.items() if v is not None} - read
    if given.get("partial_rotary_factor") == 1.0:
        unknown.discard("partial_rotary_factor")
    if unknown:
        raise ConfigError(f"{where}: {sorted(unknown)[0]} is not supported with rope_type {kind!r}")
    return Rope(theta=theta, kind=kind, **rope)


def integer(config: Mapping[str, Any], key: str, where: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number, at least `least`, of a config.json or a .gguf file's metadata; `where` names the file.

    A null counts as absent, as in transformers. Raises ConfigError naming the key.
    """
    value = default if config.get(key) is None else config[key]
    if value is None:
        raise ConfigError(f"{where}: {key} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{where}: {key} is {value!r}, but must be a whole number, at least {least}")
    return value


def number(
    config: Mapping[str, Any], key: str, where: str, default: float | None = None, *, above: float = -math.inf
) -> float:
    """As `integer`, for any finite number above `above`."""
    value = default if config.get(key) is None else config[key]
    if value is None:
        raise ConfigError(f"{where}: {key} is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not above < value < math.inf:
        limit = f" above {above:g}" if above > -math.inf else ""
        raise ConfigError(f"{where}: {key} is {value!r}, but must be a number{limit}")
    return float(value)


def _eos_ids(value: Any, where: str) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) for i in ids):
        raise ConfigError(f"{where}: eos_token_id is {value!r}, but must be an id or a list of ids")
    return tuple(dict.fromkeys(ids))
