"""Weights as modules declare them, and the two smallest modules: a linear with LoRA, and a norm."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.products import rows_dot


class Linear(nnx.Module):
    """y = x Wᵀ + b, plus (alpha / rank) (x A) B where the configuration puts LoRA. Products accumulate in float32.

    sizes: (in, out) and axes: their names. W is [out, in], as checkpoints have it.
    """

    def __init__(
        self, name: str, sizes: tuple[int, int], axes: tuple[str, str], bias: bool, lora: LoraConfig, dtype: Any
    ):
        inputs, outputs = sizes
        self.weight = weight(f"{name}.weight", sizes[::-1], dtype, axes[::-1])
        self.bias = weight(f"{name}.bias", (outputs,), dtype, axes[1:]) if bias else None
        self.scale = lora_scale(lora)
        adapted = is_adapted(name, lora)
        self.lora_a = nnx.LoRAParam(jnp.zeros((inputs, lora.rank))) if adapted else None
        self.lora_b = nnx.LoRAParam(jnp.zeros((lora.rank, outputs))) if adapted else None

    def __call__(self, x: jax.Array) -> jax.Array:
        # In two dimensions: the gradient by a three-dimensional x makes XLA's CPU backend copy x (twice the time).
        flat = x.reshape(-1, x.shape[-1])
        y = rows_dot(flat, self.weight[...])
        if self.bias is not None:
            y = y + self.bias[...].astype(jnp.float32)
        if self.lora_a is not None and self.lora_b is not None:
            y = y + flat @ self.lora_a[...] @ self.lora_b[...] * self.scale
        return y.reshape(*x.shape[:-1], -1)


class Norm(nnx.Module):
    """A weight for `rms_norm`; axis: the name of what it spans."""

    def __init__(self, name: str, size: int, axis: str, arch: Architecture, dtype: Any):
        self.weight = weight(f"{name}.weight", (size,), dtype, (axis,))
        self.eps, self.centred = arch.norm_eps, arch.centred_norms

    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_norm(x, self.weight[...], self.eps, centred=self.centred)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, *, centred: bool = False) -> jax.Array:
    """x / rms(x) * weight over the last axis, float32 (Zhang and Sennrich, 2019, arXiv:1910.07467).

    centred: the weight is stored less 1.
    """
    factor = weight.astype(jnp.float32) + 1 if centred else weight.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * factor


def weight(
    hf_name: str, shape: tuple[int, ...], dtype: Any, logical: tuple[str, ...], *, turned: bool = False
) -> nnx.Param:
    """A frozen weight. hf_name: its name in a checkpoint. logical: the names of its axes. For both see `WeightSpec`."""
    return nnx.Param(jnp.zeros(shape, dtype), hf_name=hf_name, logical=logical, turned=turned)


def is_adapted(name: str, lora: LoraConfig) -> bool:
    """Whether the linear of that name gets LoRA."""
    return lora.rank > 0 and name.rsplit(".", 1)[-1] in lora.modules


def lora_scale(lora: LoraConfig) -> float:
    """alpha / rank, PEFT's convention."""
    return lora.alpha / lora.rank if lora.rank else 0.0
