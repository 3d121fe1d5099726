"""What a decoder looks like: one frozen, hashable description for all the families that we run."""

import math
from dataclasses import dataclass
from typing import Literal

from jaxsearchrl.errors import ConfigError

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text", "gpt_oss"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
LayerKind = Literal["full_attention", "sliding_attention", "linear_attention"]
"""What a layer mixes tokens by: attention to all before, to the last `window`, or a recurrent state (`DeltaNet`)."""


@dataclass(frozen=True)
class Rope:
    """Rotary positions. Fields beyond `theta`, `kind` and `share` count only for the kinds that read them.

    share: of a head's dimensions, from the first on, are rotated. factor: how many times the context was stretched.
    original_positions: the context before that, in tokens. low_freq_factor, high_freq_factor: llama3. beta_fast,
    beta_slow: yarn, in rotations over the original context; truncate: whether the dimensions that follow from them are
    rounded. attention_factor: yarn, multiplies cosine and sine.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    share: float = 1.0


@dataclass(frozen=True)
class Clamp:
    """gpt-oss's experts: down(g sigmoid(slope g) (u + 1)), g = min(gate, limit), u = up within ± limit.

    The columns of gate and up take turns in their one matrix; the linears and the router have biases.
    """

    limit: float
    slope: float


@dataclass(frozen=True)
class Experts:
    """MLPs of which each token takes a few (Shazeer et al., 2017, arXiv:1701.06538).

    count: how many there are. chosen: how many a token takes. width: of each. normalised: whether the weights of the
    chosen ones are made to sum to 1. fused: whether gate and up are one matrix. shared_width: of a further MLP that
    every token takes, weighed by a sigmoid; 0 for none. clamp: of experts whose gate is not a plain silu.
    """

    count: int
    chosen: int
    width: int
    normalised: bool
    fused: bool = False
    shared_width: int = 0
    clamp: Clamp | None = None


@dataclass(frozen=True)
class DeltaNet:
    """A layer with a recurrent state in the place of attention (Yang et al., 2024, arXiv:2412.06464).

    key_heads of key_dim each serve value_heads of value_dim; kernel: tokens that the convolution before it spans.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def channels(self) -> int:
        """What is convolved: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class Architecture:
    """A decoder's static description. `max_positions` is its context in tokens; `eos_ids` end a turn or a text.

    qk_norm: whether queries and keys are normalised, head by head, before they are rotated. experts: what stands in the
    place of the MLP, in all layers but those of `dense_layers`. layer_kinds: of each layer; empty for full attention in
    all. window: how many positions, its own among them, a token of a layer with sliding attention sees. sinks: whether
    each head's softmax has one more term, learnt, that stands for no token. output_gate: whether what was attended to
    is weighed by a sigmoid. centred_norms: whether the norms' weights are stored less 1.
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
    layer_kinds: tuple[LayerKind, ...] = ()
    window: int = 0
    sinks: bool = False
    delta: DeltaNet | None = None
    output_gate: bool = False
    centred_norms: bool = False

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer has experts."""
        return self.experts is not None and layer not in self.dense_layers

    def kind(self, layer: int) -> LayerKind:
        """What the layer mixes tokens by."""
        return self.layer_kinds[layer] if self.layer_kinds else "full_attention"

    @property
    def rotary_dim(self) -> int:
        """How many of a head's dimensions are rotated."""
        return int(self.head_dim * self.rope.share)


def check_architecture(arch: Architecture, where: str) -> Architecture:
    """Returns `arch`. Raises ConfigError when its sizes are impossible together; `where` names the file."""
    if arch.heads % arch.kv_heads:
        raise ConfigError(f"{where}: {arch.heads} query heads cannot share {arch.kv_heads} kv heads evenly")
    if arch.rotary_dim % 2 or not arch.rotary_dim:
        rotated = "" if arch.rope.share == 1 else f", of which {arch.rotary_dim} are rotated"
        raise ConfigError(f"{where}: head_dim is {arch.head_dim}{rotated}, but rotary positions need an even number")
    if arch.experts and arch.experts.chosen > arch.experts.count:
        raise ConfigError(f"{where}: a token takes {arch.experts.chosen} experts, but there are {arch.experts.count}")
    if arch.layer_kinds and len(arch.layer_kinds) != arch.layers:
        raise ConfigError(f"{where}: layer_types names {len(arch.layer_kinds)} layers, but there are {arch.layers}")
    if "sliding_attention" in arch.layer_kinds and arch.window < 1:
        raise ConfigError(f"{where}: layer_types has 'sliding_attention', but there is no sliding_window")
    if arch.delta and arch.delta.value_heads % arch.delta.key_heads:
        delta = arch.delta
        raise ConfigError(f"{where}: {delta.value_heads} value heads cannot share {delta.key_heads} key heads evenly")
    return arch


def check_context(arch: Architecture, capacity: int) -> None:
    """Raises ConfigError for slots of more tokens than the model's context has."""
    if capacity > arch.max_positions:
        raise ConfigError(f"sampling.capacity = {capacity}: the model's context has {arch.max_positions} positions")


def linear_shapes(arch: Architecture, layer: int) -> dict[str, tuple[int, int]]:
    """The linears of a layer, which are also what LoRA can apply to: "self_attn.q_proj" -> (out, in).

    Each expert has its own ("mlp.experts.3.up_proj"), unless gate and up are fused: then all experts' matrices are one
    stack, "mlp.experts.*.gate_up_proj". The router is none of them.
    """
    d, q, kv = arch.d_model, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    if arch.delta and arch.kind(layer) == "linear_attention":
        delta = arch.delta
        values = delta.value_heads * delta.value_dim
        shapes = {
            "linear_attn.in_proj_qkv": (delta.channels, d),
            "linear_attn.in_proj_z": (values, d),
            "linear_attn.in_proj_b": (delta.value_heads, d),
            "linear_attn.in_proj_a": (delta.value_heads, d),
            "linear_attn.out_proj": (d, values),
        }
    else:
        shapes = {
            "self_attn.q_proj": (2 * q if arch.output_gate else q, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
            "self_attn.o_proj": (d, q),
        }
    mlps = {"mlp": arch.mlp_dim}
    if arch.experts and arch.is_sparse(layer):
        experts, mlps = arch.experts, {}
        if experts.fused:
            shapes["mlp.experts.*.gate_up_proj"] = (2 * experts.width, d)
            shapes["mlp.experts.*.down_proj"] = (d, experts.width)
        else:
            mlps = {f"mlp.experts.{expert}": experts.width for expert in range(experts.count)}
        if experts.shared_width:
            mlps["mlp.shared_expert"] = experts.shared_width
            shapes["mlp.shared_expert_gate"] = (1, d)
    for mlp, width in mlps.items():
        shapes |= {f"{mlp}.{linear}": (width, d) for linear in ("gate_proj", "up_proj")}
        shapes[f"{mlp}.down_proj"] = (d, width)
    return shapes


def adaptable(arch: Architecture) -> tuple[str, ...]:
    """The last parts of the linears' names ("q_proj", ...), which is how LoRA is told where to be."""
    names = (name.rpartition(".")[2] for layer in range(arch.layers) for name in linear_shapes(arch, layer))
    return tuple(dict.fromkeys(names))


def has_bias(arch: Architecture, linear: str) -> bool:
    """Whether the linear of that name ("self_attn.q_proj", ...) has a bias."""
    if linear.startswith("linear_attn."):
        return False
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
        if arch.delta and arch.kind(layer) == "linear_attention":
            shapes[f"{prefix}linear_attn.conv1d.weight"] = (arch.delta.channels, 1, arch.delta.kernel)
            shapes[f"{prefix}linear_attn.dt_bias"] = (arch.delta.value_heads,)
            shapes[f"{prefix}linear_attn.A_log"] = (arch.delta.value_heads,)
            shapes[f"{prefix}linear_attn.norm.weight"] = (arch.delta.value_dim,)
        elif arch.qk_norm:
            shapes[f"{prefix}self_attn.q_norm.weight"] = (arch.head_dim,)
            shapes[f"{prefix}self_attn.k_norm.weight"] = (arch.head_dim,)
        if arch.sinks:
            shapes[f"{prefix}self_attn.sinks"] = (arch.heads,)
        if arch.experts and arch.is_sparse(layer):
            router = "gate" if arch.experts.clamp is None else "router"
            shapes[f"{prefix}mlp.{router}.weight"] = (arch.experts.count, arch.d_model)
            if arch.experts.clamp:
                shapes[f"{prefix}mlp.router.bias"] = (arch.experts.count,)
        for linear, shape in linear_shapes(arch, layer).items():
            if ".*." in linear and arch.experts:
                stack = f"{prefix}{linear.replace('.*', '')}"
                if arch.experts.clamp:
                    shapes[f"{stack}_bias"] = (arch.experts.count, shape[0])
                shapes[stack] = (arch.experts.count, *(shape[::-1] if arch.experts.clamp else shape))
                continue
            shapes[f"{prefix}{linear}.weight"] = shape
            if has_bias(arch, linear):
                shapes[f"{prefix}{linear}.bias"] = shape[:1]
    return shapes


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln(factor) + 1, the temperature of YaRN (arXiv 2309.00071, equation 22)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
