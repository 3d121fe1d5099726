"""Attention over packed rows by the means of the platform: TPU's splash attention where it is exact, else by pairs.

Splash attention's own masks cannot say that later segments see the first, nor count a window in positions, so it is
given the mask itself, which is made on the device: blocks without anything seen are skipped all the same. That mask is
of T², hence a limit on T. XLA's partitioner cannot cut such a kernel: on a mesh each device gets its rows and heads.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

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
    mesh: Mesh | None = None,
    window: int | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """q [B, T, N, H], k and v [B, T, K, H], segments and positions [B, T] -> [B, T, N, H]; see packed_attention.

    mesh: on which rows and heads lie; None for the default device.
    """
    platform = mesh.devices.flat[0].platform if mesh else jax.default_backend()
    if implementation(platform, q.shape[1]) != "splash":
        return packed_attention(q, k, v, segments, positions, window=window, sinks=sinks)
    if mesh is None or mesh.size == 1:
        return splash_attention(q, k, v, segments, positions, window=window, sinks=sinks)
    return splash_on_mesh(mesh, q, k, v, segments, positions, window=window, sinks=sinks)


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


def splash_on_mesh(
    mesh: Mesh,
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
    """As splash_attention, on each device for its rows and, where "tensor" divides both kinds of heads, its heads."""
    row, tensor = ("data", "fsdp"), mesh.shape["tensor"]
    heads = "tensor" if q.shape[2] % tensor == 0 and k.shape[2] % tensor == 0 else None
    of_heads, of_rows = PartitionSpec(row, None, heads), PartitionSpec(row)

    def own(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, positions: jax.Array, *sinks: jax.Array):
        of_own = sinks[0] if sinks else None
        return splash_attention(q, k, v, segments, positions, window=window, sinks=of_own, interpret=interpret)

    more, of_more = ((), ()) if sinks is None else ((sinks,), (PartitionSpec(heads),))
    specs = (of_heads, of_heads, of_heads, of_rows, of_rows, *of_more)
    mapped = jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=of_heads, check_vma=False)
    return mapped(q, k, v, segments, positions, *more)
