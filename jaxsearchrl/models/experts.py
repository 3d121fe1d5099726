"""A mixture of experts: a router gives each token to a few small MLPs and adds up what they answer.

Two ways that compute the same. `dense` runs every expert on every token, which is easy to read and right for a CPU.
`tiled`, for accelerators, sorts the tokens by expert and takes them in tiles of a fixed size, each a product with the
matrices of one expert. (`jax.lax.ragged_dot` is a product over all experts on GPUs, and on TPUs wants all rows at once
in its inputs and outputs, and all experts' matrices out of MXFP4.)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models import mxfp4
from jaxsearchrl.models.architecture import Architecture, Experts
from jaxsearchrl.models.linear import Linear, is_adapted, lora_scale, weight
from jaxsearchrl.models.mlp import Mlp
from jaxsearchrl.models.products import rows_dot

TILE = 128
"""Rows of a tile: enough for an accelerator to be busy with, and few to be left over by an expert."""


class StackedLinear(nnx.Module):
    """One linear of every expert: W [E, in, out], and LoRA's A [E, in, R] and B [E, R, out].

    A checkpoint has one [out, in] matrix for each expert, or all in one [E, out, in], or (not turned) [E, in, out].
    packed: W stays in MXFP4, [E, out, in / 32] blocks of 32 values, until it is used.
    """

    def __init__(
        self,
        name: str,
        experts: int,
        sizes: tuple[int, int],
        lora: LoraConfig,
        dtype: Any,
        *,
        turned: bool,
        bias: bool,
        packed: bool,
    ):
        axes = ("expert", "expert_in", "expert_out")
        self.dtype, self.packed = dtype, packed
        if packed:
            blocks, stored = (experts, sizes[1], sizes[0] // mxfp4.BLOCK), (axes[0], axes[2], axes[1])
            self.blocks = weight(f"{name}_blocks", (*blocks, mxfp4.BLOCK // 2), jnp.uint8, (*stored, "block"))
            self.scales = weight(f"{name}_scales", blocks, jnp.uint8, stored)
        else:
            self.weight = weight(name, (experts, *sizes), dtype, axes, turned=turned)
        self.bias = weight(f"{name}_bias", (experts, sizes[1]), dtype, axes[::2]) if bias else None
        self.scale = lora_scale(lora)
        adapted = is_adapted(name.removesuffix(".weight"), lora)
        self.lora_a = nnx.LoRAParam(jnp.zeros((experts, sizes[0], lora.rank))) if adapted else None
        self.lora_b = nnx.LoRAParam(jnp.zeros((experts, lora.rank, sizes[1]))) if adapted else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [M, in], given to every expert, or [E, M, in] -> [E, M, out]."""
        y = _product(x, self._matrices())
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)[:, None]
        if self.lora_a is not None and self.lora_b is not None:
            y = y + _product(_product(x, self.lora_a[...]), self.lora_b[...]) * self.scale
        return y

    def _matrices(self) -> jax.Array:
        if not self.packed:
            return self.weight[...]
        return mxfp4.dequantise(self.blocks[...], self.scales[...], self.dtype).swapaxes(1, 2)


class SparseMlp(nnx.Module):
    """Router and experts; each expert is an MLP. The router gets no LoRA.

    Beside them there may be an expert that all tokens share, weighed by a sigmoid. packed: the experts stay in MXFP4.
    """

    def __init__(
        self, name: str, arch: Architecture, experts: Experts, lora: LoraConfig, dtype: Any, *, packed: bool = False
    ):
        self.sizes = experts
        D, width, clamped = arch.d_model, experts.width, experts.clamp is not None
        router = f"{name}.router" if clamped else f"{name}.gate"
        self.gate = weight(f"{router}.weight", (experts.count, D), dtype, ("expert", "width"))
        self.gate_bias = weight(f"{router}.bias", (experts.count,), dtype, ("expert",)) if clamped else None
        if experts.fused:
            names, sizes = "{}.experts.{}", {"gate_up_proj": (D, 2 * width), "down_proj": (width, D)}
        else:
            names = "{}.experts.*.{}.weight"
            sizes = {"gate_proj": (D, width), "up_proj": (D, width), "down_proj": (width, D)}
        kind = {"turned": not clamped, "bias": clamped, "packed": packed}
        self.experts = nnx.Dict(
            {
                linear: StackedLinear(names.format(name, linear), experts.count, size, lora, dtype, **kind)
                for linear, size in sizes.items()
            }
        )
        if experts.shared_width:
            shared, gate = f"{name}.shared_expert", f"{name}.shared_expert_gate"
            self.shared_expert = Mlp(shared, D, experts.shared_width, False, lora, dtype)
            self.shared_expert_gate = Linear(gate, (D, 1), ("width", "one"), False, lora, dtype)
        else:
            self.shared_expert = self.shared_expert_gate = None

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x [B, T, D] -> [B, T, D], and the numbers of the experts that were chosen, [B, T, chosen]."""
        flat = x.reshape(-1, x.shape[-1])
        logits = rows_dot(flat, self.gate[...])
        if self.gate_bias is not None:
            logits = logits + self.gate_bias[...].astype(jnp.float32)
        ids, shares = route(logits, self.sizes)
        y = jax.lax.platform_dependent(flat, ids, shares, cpu=self.dense, default=self.tiled)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            y = y + jax.nn.sigmoid(self.shared_expert_gate(flat)) * self.shared_expert(flat)
        return y.reshape(x.shape), ids.reshape(*x.shape[:-1], -1)

    def dense(self, x: jax.Array, ids: jax.Array, shares: jax.Array) -> jax.Array:
        """x [M, D], ids and shares [M, chosen] -> [M, D]."""
        all_shares = jnp.zeros((len(x), self.sizes.count)).at[jnp.arange(len(x))[:, None], ids].add(shares)
        return jnp.einsum("emd,me->md", _mlp(self.experts, x, self.sizes), all_shares)

    def tiled(self, x: jax.Array, ids: jax.Array, shares: jax.Array) -> jax.Array:
        """As `dense`; between the passes a tile's inputs are kept, its inside is computed again."""
        experts, choices = tiles(ids.reshape(-1), self.sizes.count, min(TILE, ids.size))
        rows = choices // self.sizes.chosen
        definition, stacked = nnx.split(self.experts)

        def tile(part: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            expert, x, shares = part
            one = jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, expert, 1), stacked)
            return _mlp(nnx.merge(definition, one), x, self.sizes)[0] * shares[:, None]

        shares = shares.reshape(-1).at[choices].get(mode="fill", fill_value=0)
        y = jax.lax.map(jax.checkpoint(tile), (experts, x.at[rows].get(mode="fill", fill_value=0), shares))
        return jnp.zeros_like(x).at[rows].add(y, mode="drop")


def route(logits: jax.Array, experts: Experts) -> tuple[jax.Array, jax.Array]:
    """logits [M, E] -> the chosen experts' numbers and shares, [M, chosen] each; softmax first, then the choice."""
    shares, ids = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), experts.chosen)
    return ids, shares / shares.sum(-1, keepdims=True) if experts.normalised else shares


def tiles(ids: jax.Array, count: int, size: int) -> tuple[jax.Array, jax.Array]:
    """Cuts choices, sorted by expert, into tiles of `size`; ids [C], below count -> experts [n], choices [n, size].

    n is C // size + count, enough however the choices fall. Where a tile has none, it has C, which is no choice.
    """
    C, n = len(ids), len(ids) // size + count
    order = jnp.argsort(ids, stable=True)
    counts = jnp.bincount(ids, length=count)
    ends, filled = jnp.cumsum(counts), -(-counts // size)  # filled: tiles of each expert
    last = jnp.cumsum(filled)
    experts = jnp.minimum(jnp.searchsorted(last, jnp.arange(n), side="right"), count - 1)
    starts = (ends - counts)[experts] + (jnp.arange(n) - (last - filled)[experts]) * size
    places = starts[:, None] + jnp.arange(size)
    return experts, jnp.where(places < ends[experts][:, None], order[jnp.minimum(places, C - 1)], C)


def _mlp(experts: nnx.Dict, x: jax.Array, sizes: Experts) -> jax.Array:
    """x [M, D] -> what each expert answers, [E, M, D]."""
    if not sizes.fused:
        gate, up = experts["gate_proj"](x), experts["up_proj"](x)
        return experts["down_proj"](jax.nn.silu(gate) * up)
    both, clamp = experts["gate_up_proj"](x), sizes.clamp
    if clamp is None:
        gate, up = jnp.split(both, 2, axis=-1)
        return experts["down_proj"](jax.nn.silu(gate) * up)
    gate, up = jnp.minimum(both[..., ::2], clamp.limit), jnp.clip(both[..., 1::2], -clamp.limit, clamp.limit)
    return experts["down_proj"](gate * jax.nn.sigmoid(clamp.slope * gate) * (up + 1))


def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [M, in] or [E, M, in], w [E, in, out] -> [E, M, out], in the dtype of w, accumulated in float32."""
    form = "md,edf->emf" if x.ndim == 2 else "emd,edf->emf"
    return jnp.einsum(form, x.astype(w.dtype), w, preferred_element_type=jnp.float32)
