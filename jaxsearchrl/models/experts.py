"""A mixture of experts: a router gives each token to a few small MLPs and adds up what they answer.

Two ways that compute the same: `dense` runs every expert on every token, which is easy to read; `ragged` sorts the
tokens by expert and multiplies each group by its expert's matrices (`jax.lax.ragged_dot`). On a CPU, where XLA has no
such product and would multiply every choice of every token by all experts, `dense` is what is used.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.architecture import Architecture, Experts
from jaxsearchrl.models.linear import Linear, is_adapted, lora_scale, weight
from jaxsearchrl.models.mlp import Mlp
from jaxsearchrl.models.products import rows_dot


class StackedLinear(nnx.Module):
    """One linear of every expert: W [E, in, out], and LoRA's A [E, in, R] and B [E, R, out].

    A checkpoint has one [out, in] matrix for each expert, or all in one [E, out, in].
    """

    def __init__(self, name: str, experts: int, sizes: tuple[int, int], lora: LoraConfig, dtype: Any):
        axes = ("expert", "expert_in", "expert_out")
        self.weight = weight(name, (experts, *sizes), dtype, axes, turned=True)
        self.scale = lora_scale(lora)
        adapted = is_adapted(name.removesuffix(".weight"), lora)
        self.lora_a = nnx.LoRAParam(jnp.zeros((experts, sizes[0], lora.rank))) if adapted else None
        self.lora_b = nnx.LoRAParam(jnp.zeros((experts, lora.rank, sizes[1]))) if adapted else None

    def __call__(self, product: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        """product: multiplies rows by their experts' matrices."""
        y = product(x, self.weight[...])
        if self.lora_a is not None and self.lora_b is not None:
            y = y + product(product(x, self.lora_a[...]), self.lora_b[...]) * self.scale
        return y


class SparseMlp(nnx.Module):
    """Router and experts; each expert is down(silu(gate(x)) * up(x)). The router gets no LoRA.

    Beside them there may be an expert that all tokens share, weighed by a sigmoid.
    """

    def __init__(self, name: str, arch: Architecture, experts: Experts, lora: LoraConfig, dtype: Any):
        self.sizes = experts
        self.gate = weight(f"{name}.gate.weight", (experts.count, arch.d_model), dtype, ("expert", "width"))
        wide, fused, narrow = (
            (arch.d_model, experts.width),
            (arch.d_model, 2 * experts.width),
            (experts.width, arch.d_model),
        )
        if experts.fused:
            names, sizes = "{}.experts.{}", {"gate_up_proj": fused, "down_proj": narrow}
        else:
            names, sizes = "{}.experts.*.{}.weight", {"gate_proj": wide, "up_proj": wide, "down_proj": narrow}
        self.experts = nnx.Dict(
            {
                linear: StackedLinear(names.format(name, linear), experts.count, size, lora, dtype)
                for linear, size in sizes.items()
            }
        )
        if experts.shared_width:
            shared, gate = f"{name}.shared_expert", f"{name}.shared_expert_gate"
            self.shared_expert = Mlp(shared, arch.d_model, experts.shared_width, False, lora, dtype)
            self.shared_expert_gate = Linear(gate, (arch.d_model, 1), ("width", "one"), False, lora, dtype)
        else:
            self.shared_expert = self.shared_expert_gate = None

    def __call__(self, x: jax.Array) -> jax.Array:
        flat = x.reshape(-1, x.shape[-1])
        ids, shares = route(rows_dot(flat, self.gate[...]), self.sizes)
        y = jax.lax.platform_dependent(flat, ids, shares, cpu=self.dense, default=self.ragged)
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            y = y + jax.nn.sigmoid(self.shared_expert_gate(flat)) * self.shared_expert(flat)
        return y.reshape(x.shape)

    def ragged(self, x: jax.Array, ids: jax.Array, shares: jax.Array) -> jax.Array:
        """x [M, D], ids and shares [M, chosen] -> [M, D]."""
        order = jnp.argsort(ids.reshape(-1), stable=True)
        rows = order // self.sizes.chosen
        counts = jnp.bincount(ids.reshape(-1), length=self.sizes.count)

        def product(a: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.ragged_dot(a.astype(w.dtype), w, counts, preferred_element_type=jnp.float32)

        y = self._mlp(product, x[rows]) * shares.reshape(-1)[order, None]
        return jnp.zeros_like(x).at[rows].add(y)

    def dense(self, x: jax.Array, ids: jax.Array, shares: jax.Array) -> jax.Array:
        """As `ragged`."""

        def product(a: jax.Array, w: jax.Array) -> jax.Array:
            form = "md,edf->emf" if a.ndim == 2 else "emd,edf->emf"
            return jnp.einsum(form, a.astype(w.dtype), w, preferred_element_type=jnp.float32)

        all_shares = jnp.zeros((len(x), self.sizes.count)).at[jnp.arange(len(x))[:, None], ids].add(shares)
        return jnp.einsum("emd,me->md", self._mlp(product, x), all_shares)

    def _mlp(self, product: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        if self.sizes.fused:
            gate, up = jnp.split(self.experts["gate_up_proj"](product, x), 2, axis=-1)
        else:
            gate, up = self.experts["gate_proj"](product, x), self.experts["up_proj"](product, x)
        return self.experts["down_proj"](product, jax.nn.silu(gate) * up)


def route(logits: jax.Array, experts: Experts) -> tuple[jax.Array, jax.Array]:
    """logits [M, E] -> the chosen experts' numbers and shares, [M, chosen] each; softmax first, then the choice."""
    shares, ids = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), experts.chosen)
    return ids, shares / shares.sum(-1, keepdims=True) if experts.normalised else shares
