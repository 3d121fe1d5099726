"""The MLP of a layer without experts, and that which a layer with experts has beside them."""

from typing import Any

import jax
from flax import nnx

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.linear import Linear


class Mlp(nnx.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, name: str, d_model: int, width: int, bias: bool, lora: LoraConfig, dtype: Any):
        wide, narrow = (d_model, width), (width, d_model)
        self.gate_proj = Linear(f"{name}.gate_proj", wide, ("width", "mlp"), bias, lora, dtype)
        self.up_proj = Linear(f"{name}.up_proj", wide, ("width", "mlp"), bias, lora, dtype)
        self.down_proj = Linear(f"{name}.down_proj", narrow, ("mlp", "width"), bias, lora, dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
