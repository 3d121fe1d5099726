"""Attention over packed rows by the means of the platform: TPU's splash attention where it is exact, else by pairs.

Splash attention's own masks cannot say that later segments see the first, nor count a window in positions, so it is
given the mask itself, which is made on the device: blocks without anything seen are skipped all the same. That mask is
of T², hence a limit on T.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxsearchrl.models.packed_attention import Places, packed_attention, visible

# Compiled for a v5e, two rows of this length (16 heads of 128) take 0.8 GiB beside their arguments, both ways.
LONGEST = 8192

LANES = 128  # of a TPU's vectors: the least block


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    positions: jax.Array,
    *,
    window: int | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """q [B, T, N, H], k and v [B, T, K, H], segments and positions [B, T] -> [B, T, N, H]; see packed_attention."""
    chosen = splash_attention if implementation(jax.default_backend(), q.shape[1]) == "splash" else packed_attention
    return chosen(q, k, v, segments, positions, window=window, sinks=sinks)


def implementation(platform: str, tokens: int) -> str:
    """Which of "splash" and "reference" (pairs of blocks) rows of T = tokens get; both take any head size and sinks."""
    return "splash" if platform == "tpu" and tokens % LANES == 0 and tokens <= LONGEST else "reference"


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    positions: jax.Array,
    *,
    window: int | None = None,
    sinks: jax.Array | None = None,
    interpret: bool = False,
) -> jax.Array:
    """As packed_attention, rounded to the dtype of q, for T a multiple of 128. interpret: without a TPU, slowly."""
    # Not at the top: other platforms do without it, and it is experimental.
    from jax.experimental.pallas.ops.tpu.splash_attention import BlockSizes, make_splash_mha_single_device

    _, T, _, H = q.shape
    block = next(size for size in (512, 256, LANES) if T % size == 0)
    blocks = BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )

    def row(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, positions: jax.Array) -> jax.Array:
        places = Places(jnp.arange(T), segments, positions)
        seen = visible(Places(*(x[:, None] for x in places)), Places(*(x[None] for x in places)), window)
        kernel: Any = make_splash_mha_single_device(seen[None], block_sizes=blocks, interpret=interpret)
        # A name is chosen by this flag, which jit makes an array of.
        kernel.fwd_mask_info = kernel.fwd_mask_info._replace(is_dynamic_mask=True)
        return kernel(q, k, v, sinks=sinks)

    q, k, v = (x.swapaxes(1, 2) for x in (q * (1 / math.sqrt(H)), k, v))
    return jax.vmap(row)(q, k, v, segments, positions).swapaxes(1, 2).astype(jnp.float32)
