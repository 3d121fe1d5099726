"""A layer that mixes tokens by a recurrent state: convolution, gated delta rule, gated norm (Qwen3.5)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.architecture import Architecture, DeltaNet
from jaxsearchrl.models.linear import Linear, rms_norm, weight

UNIT_EPS = 1e-6


class GatedDeltaNet(nnx.Module):
    """Yang et al., 2024, arXiv:2412.06464. Gates, decays and what they act on are float32."""

    def __init__(self, name: str, arch: Architecture, delta: DeltaNet, lora: LoraConfig, dtype: Any):
        self.delta, self.eps = delta, arch.norm_eps
        values = delta.value_heads * delta.value_dim

        def linear(part: str, sizes: tuple[int, int], axes: tuple[str, str]) -> Linear:
            return Linear(f"{name}.{part}", sizes, axes, False, lora, dtype)

        self.in_proj_qkv = linear("in_proj_qkv", (arch.d_model, delta.channels), ("width", "delta_channels"))
        self.in_proj_z = linear("in_proj_z", (arch.d_model, values), ("width", "delta_values"))
        self.in_proj_b = linear("in_proj_b", (arch.d_model, delta.value_heads), ("width", "delta_heads"))
        self.in_proj_a = linear("in_proj_a", (arch.d_model, delta.value_heads), ("width", "delta_heads"))
        self.out_proj = linear("out_proj", (values, arch.d_model), ("delta_values", "width"))
        kernel = (delta.channels, 1, delta.kernel)
        self.conv1d = weight(f"{name}.conv1d.weight", kernel, dtype, ("delta_channels", "one", "kernel"))
        self.dt_bias = weight(f"{name}.dt_bias", (delta.value_heads,), dtype, ("delta_heads",))
        self.a_log = weight(f"{name}.A_log", (delta.value_heads,), dtype, ("delta_heads",))
        self.norm = weight(f"{name}.norm.weight", (delta.value_dim,), dtype, ("delta_value_dim",))

    def __call__(self, x: jax.Array, state: Any, layer: int) -> tuple[jax.Array, Any]:
        B, T, _ = x.shape
        delta = self.delta
        mixed, state = state.convolve(layer, self.in_proj_qkv(x), self.conv1d[...][:, 0].astype(jnp.float32))
        keys = delta.key_heads * delta.key_dim
        q, k, v = jnp.split(jax.nn.silu(mixed), (keys, 2 * keys), axis=-1)
        # Successive value heads share a key head.
        q, k = (
            jnp.repeat(_unit(x.reshape(B, T, delta.key_heads, -1)), delta.value_heads // delta.key_heads, axis=2)
            for x in (q, k)
        )
        v = v.reshape(B, T, delta.value_heads, -1)
        beta = jax.nn.sigmoid(self.in_proj_b(x))
        rate = jnp.exp(self.a_log[...].astype(jnp.float32))
        g = -rate * jax.nn.softplus(self.in_proj_a(x) + self.dt_bias[...].astype(jnp.float32))
        out, state = state.recur(layer, q * delta.key_dim**-0.5, k, v, g, beta)
        gate = self.in_proj_z(x).reshape(out.shape)
        out = rms_norm(out, self.norm[...], self.eps) * jax.nn.silu(gate)
        return self.out_proj(out.reshape(B, T, -1)), state


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + UNIT_EPS)
