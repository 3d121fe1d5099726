"""The decoder: declared once as a Flax module, used as pure functions over two flat dicts of arrays.

Each weight is declared in one place with its checkpoint name, shape, dtype and logical axes. From the declaration
follow the abstract trees, the loader, the exporter and the parity tests. `nnx.split` by variable type separates the
frozen `base` from the trained `lora`; both are `{"layers.0.self_attn.q_proj.weight": array, …}`. All families are one
body: what they differ in (biases, rope, norms, experts, what a layer mixes tokens by) the architecture states.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture, adaptable
from jaxsearchrl.models.delta_net import GatedDeltaNet
from jaxsearchrl.models.experts import SparseMlp
from jaxsearchrl.models.linear import Linear, Norm, rms_norm, weight
from jaxsearchrl.models.mlp import Mlp
from jaxsearchrl.models.mxfp4 import BLOCK
from jaxsearchrl.models.rope import apply_rope, rope_frequencies

Weights = dict[str, jax.Array]
"""Arrays by dotted path in the module."""


class State(Protocol):
    """See `state.py`."""

    @property
    def positions(self) -> jax.Array: ...

    def attend(
        self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array, window: int | None, sinks: jax.Array | None
    ) -> tuple[jax.Array, "State"]: ...

    def convolve(self, layer: int, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, "State"]: ...

    def recur(
        self, layer: int, q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array
    ) -> tuple[jax.Array, "State"]: ...

    def routed(self, layer: int, ids: jax.Array) -> "State": ...


@dataclass(frozen=True)
class WeightSpec:
    """A base weight: its name in a checkpoint, and its shape here.

    A name with `*` stands for one matrix for each number from 0 on; here they are one array. turned: the checkpoint has
    matrices as [out, in], here they are [in, out].
    """

    hf_name: str
    shape: tuple[int, ...]
    dtype: Any
    logical: tuple[str, ...]
    turned: bool


@dataclass(frozen=True, eq=False)
class Model:
    """The static side of a decoder; hashed by identity, so that jitted functions may close over it.

    lora: with its modules named. kinds: for each layer the first one that is of its kind, that is, of the same
    computation on arrays of the same shapes. merge_layer: the arrays of one layer (`layer_weights`) and its number ->
    its module.
    """

    arch: Architecture
    lora: LoraConfig
    specs: Mapping[str, WeightSpec]
    lora_shapes: Mapping[str, tuple[int, ...]]
    kinds: tuple[int, ...]
    merge_layer: Callable[[Weights, Weights, int], "Layer"] = field(repr=False)


# ------------------------------------------------------------------------------------------------------------- modules


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions.

    Queries and keys may be normalised first (arXiv:2302.05442), and what is attended to may be weighed by a sigmoid of
    the input (arXiv:2505.06708), whose linear is then one with that of the queries, head by head.
    """

    def __init__(self, name: str, arch: Architecture, window: int | None, lora: LoraConfig, dtype: Any):
        self.arch, self.window = arch, window
        q, kv, bias = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim, arch.qkv_bias
        gated = (1 + arch.output_gate) * q
        self.q_proj = Linear(f"{name}.q_proj", (arch.d_model, gated), ("width", "heads"), bias, lora, dtype)
        self.k_proj = Linear(f"{name}.k_proj", (arch.d_model, kv), ("width", "kv_heads"), bias, lora, dtype)
        self.v_proj = Linear(f"{name}.v_proj", (arch.d_model, kv), ("width", "kv_heads"), bias, lora, dtype)
        self.o_proj = Linear(f"{name}.o_proj", (q, arch.d_model), ("heads", "width"), arch.o_bias, lora, dtype)
        self.sinks = weight(f"{name}.sinks", (arch.heads,), dtype, ("heads",)) if arch.sinks else None
        norm = lambda part: Norm(f"{name}.{part}", arch.head_dim, "head_dim", arch, dtype)  # noqa: E731
        self.q_norm, self.k_norm = (norm("q_norm"), norm("k_norm")) if arch.qk_norm else (None, None)

    def __call__(self, x: jax.Array, state: State, layer: int) -> tuple[jax.Array, State]:
        B, T, _ = x.shape
        arch = self.arch
        frequencies, scale = rope_frequencies(arch)
        q, gate = jnp.split(self.q_proj(x).reshape(B, T, arch.heads, -1), [arch.head_dim], axis=-1)
        k = self.k_proj(x).reshape(B, T, arch.kv_heads, arch.head_dim)
        v = self.v_proj(x).reshape(B, T, arch.kv_heads, arch.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q = apply_rope(q, state.positions, frequencies, scale)
        k = apply_rope(k, state.positions, frequencies, scale)
        sinks = None if self.sinks is None else self.sinks[...].astype(jnp.float32)
        out, state = state.attend(layer, q, k, v, self.window, sinks)
        if arch.output_gate:
            out = out * jax.nn.sigmoid(gate)
        return self.o_proj(out.reshape(B, T, arch.heads * arch.head_dim)), state


class Layer(nnx.Module):
    """Pre-norm residual block, as number `index` of the architecture is; `name` is its name in a checkpoint."""

    def __init__(self, name: str, arch: Architecture, index: int, lora: LoraConfig, dtype: Any, packed: bool):
        norm = lambda part: Norm(f"{name}.{part}", arch.d_model, "width", arch, dtype)  # noqa: E731
        self.input_layernorm = norm("input_layernorm")
        if arch.delta and arch.kind(index) == "linear_attention":
            self.self_attn, self.linear_attn = None, GatedDeltaNet(f"{name}.linear_attn", arch, arch.delta, lora, dtype)
        else:
            window = arch.window if arch.kind(index) == "sliding_attention" else None
            self.self_attn, self.linear_attn = Attention(f"{name}.self_attn", arch, window, lora, dtype), None
        self.post_attention_layernorm = norm("post_attention_layernorm")
        if arch.experts and arch.is_sparse(index):
            self.mlp = SparseMlp(f"{name}.mlp", arch, arch.experts, lora, dtype, packed=packed)
        else:
            self.mlp = Mlp(f"{name}.mlp", arch.d_model, arch.mlp_dim, arch.mlp_bias, lora, dtype)

    def __call__(self, x: jax.Array, state: State, layer: int) -> tuple[jax.Array, State]:
        mixer = self.self_attn or self.linear_attn
        assert mixer is not None
        mixed, state = mixer(self.input_layernorm(x), state, layer)
        x = x + mixed
        normed = self.post_attention_layernorm(x)
        if isinstance(self.mlp, Mlp):
            return x + self.mlp(normed), state
        out, ids = self.mlp(normed)
        return x + out, state.routed(layer, ids)


class Decoder(nnx.Module):
    """Embedding, layers, final norm; its users read the output head (`head_of`), which never meets every position."""

    def __init__(self, arch: Architecture, lora: LoraConfig, dtype: Any, packed: bool):
        table = (arch.vocab_size, arch.d_model)
        self.embed_tokens = weight("model.embed_tokens.weight", table, dtype, ("vocab", "width"))
        self.layers = nnx.List([Layer(f"model.layers.{i}", arch, i, lora, dtype, packed) for i in range(arch.layers)])
        self.norm = Norm("model.norm", arch.d_model, "width", arch, dtype)
        self.lm_head = None if arch.tied else weight("lm_head.weight", table, dtype, ("vocab", "width"))


# ------------------------------------------------------------------------------------------------------ pure functions


def build_model(
    arch: Architecture, lora: LoraConfig, dtype: Any = jnp.float32, *, packed_experts: bool = False
) -> Model:
    """The declaration of a decoder; allocates nothing. `dtype` is how the base is stored.

    LoRA without modules is put on all linears. packed_experts: gpt-oss's stay in MXFP4. Raises ConfigError for modules
    that the family does not have, and for experts that cannot be packed.
    """
    if packed_experts and not (arch.experts and arch.experts.clamp):
        raise ConfigError(f"model.packed_experts is for gpt_oss, not for {arch.family!r}")
    if packed_experts and (arch.d_model % BLOCK or arch.mlp_dim % BLOCK):
        raise ConfigError(f"model.packed_experts: {arch.d_model} and {arch.mlp_dim} are not multiples of {BLOCK}")
    known = adaptable(arch)
    if lora.rank and (unknown := set(lora.modules) - set(known)):
        raise ConfigError(f"lora.modules: {sorted(unknown)} are no linears of {arch.family!r}: {', '.join(known)}")
    lora = replace(lora, modules=lora.modules or known)
    decoder = nnx.eval_shape(lambda: Decoder(arch, lora, dtype, packed_experts))
    _, lora_state, base_state = nnx.split(decoder, nnx.LoRAParam, nnx.Param)
    specs = {
        _dotted(path): WeightSpec(v.hf_name, v.shape, v.dtype, v.logical, v.turned)
        for path, v in nnx.to_flat_state(base_state)
    }
    lora_shapes = {_dotted(path): v.shape for path, v in nnx.to_flat_state(lora_state)}

    # One definition serves all layers of a kind.
    described = [(arch.kind(i), arch.is_sparse(i)) for i in range(arch.layers)]
    kinds = tuple(described.index(kind) for kind in described)
    layers = {i: nnx.eval_shape(lambda i=i: Layer("layer", arch, i, lora, dtype, packed_experts)) for i in set(kinds)}
    definitions = {i: nnx.split(layer, nnx.LoRAParam, nnx.Param)[0] for i, layer in layers.items()}

    def merge_layer(base: Weights, lora: Weights, index: int) -> Layer:
        nested = (nnx.from_flat_state({tuple(name.split(".")): v for name, v in flat.items()}) for flat in (lora, base))
        return nnx.merge(definitions[kinds[index]], *nested)

    return Model(arch, lora, specs, lora_shapes, kinds, merge_layer)


def forward(model: Model, base: Weights, lora: Weights, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
    """tokens [B, T] -> hidden [B, T, D] after the final norm (float32), and the state with the tokens written in."""
    x = embed(base, tokens)
    for i in range(model.arch.layers):
        x, state = layer_forward(model, layer_weights(base, i), layer_weights(lora, i), x, state, i)
    return final_norm(model, base, x), state


def embed(base: Weights, tokens: jax.Array) -> jax.Array:
    """tokens [B, T] -> [B, T, D], float32."""
    return base["embed_tokens"][tokens].astype(jnp.float32)


def layer_weights(weights: Weights, index: int) -> Weights:
    """The arrays of one layer, by path inside it; all layers of a kind have the same paths and shapes."""
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def layer_forward(
    model: Model, base: Weights, lora: Weights, x: jax.Array, state: Any, index: int
) -> tuple[jax.Array, Any]:
    """One layer: x [B, T, D] -> [B, T, D] and the state, of which the layer touches its own part, `index`."""
    return model.merge_layer(base, lora, index)(x, state, index)


def final_norm(model: Model, base: Weights, x: jax.Array) -> jax.Array:
    """What the output head reads: [B, T, D] -> [B, T, D]."""
    return rms_norm(x, base["norm.weight"], model.arch.norm_eps, centred=model.arch.centred_norms)


def head_of(base: Weights) -> jax.Array:
    """The output head [V, D]: logits = hidden · headᵀ. Tied models have one leaf for both uses."""
    return base["lm_head"] if "lm_head" in base else base["embed_tokens"]


def init_lora(model: Model, seed: int) -> Weights:
    """A uniform in ±1/√in, B zero, float32: the adapter starts as the base model (as PEFT does)."""
    rng = np.random.default_rng(seed)
    lora = {}
    for name, shape in sorted(model.lora_shapes.items()):
        bound = 1 / np.sqrt(shape[-2])
        value = rng.uniform(-bound, bound, shape) if name.endswith("lora_a") else np.zeros(shape)
        lora[name] = jnp.asarray(value, jnp.float32)
    return lora


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)
