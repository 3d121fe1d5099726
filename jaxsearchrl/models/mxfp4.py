"""MXFP4, in which gpt-oss stores its experts: 4-bit floats (e2m1), and one power of two (e8m0) for every 32 of them.

OCP Microscaling Formats (MX) Specification 1.0, section 5 and 6.3. A block of 32 is 16 bytes, the first of two values
in the low half of a byte; a scale is 2^(byte - 127), and NaN for 255.
"""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

BLOCK = 32
LARGEST = 6.0
LARGEST_EXPONENT = 2  # of 4 and 6
BIAS = 127
BYTES = np.arange(256, dtype=np.uint8)
PAIRS = (  # the two values of a byte, bfloat16, side by side in a uint32; numpy's own 4-bit floats are slow
    np.stack([BYTES & 15, BYTES >> 4], axis=-1)
    .view(ml_dtypes.float4_e2m1fn)
    .astype(ml_dtypes.bfloat16)
    .view(np.uint32)[:, 0]
)


def dequantise(blocks: Any, scales: Any, dtype: Any) -> Any:
    """blocks uint8 [..., n, 16] and scales uint8 [..., n] -> [..., 32 n]; numpy stays numpy, JAX may be jitted.

    bfloat16 and wider types hold every value exactly. XLA may flush subnormal numbers: then blocks of the smallest
    scale, 2^-127, and halves of the next become zero.
    """
    if isinstance(blocks, np.ndarray):
        values = PAIRS[np.ascontiguousarray(blocks)].view(ml_dtypes.bfloat16)
        powers = scales.view(ml_dtypes.float8_e8m0fnu).astype(ml_dtypes.bfloat16)
    else:
        values = jax.lax.bitcast_convert_type(blocks, jnp.float4_e2m1fn).astype(jnp.bfloat16)
        powers = jax.lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu).astype(jnp.bfloat16)
    product = values.reshape(*scales.shape, BLOCK) * powers[..., None]
    return product.reshape(*scales.shape[:-1], -1).astype(dtype)


def quantise(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[..., 32 n], finite -> blocks uint8 [..., n, 16] and scales uint8 [..., n].

    A block's scale brings its largest magnitude into [4, 8); what then lies above 6 becomes 6, and all else the nearest
    value, the even one of two (section 6.3).
    """
    values = np.ascontiguousarray(matrix, np.float32).reshape(*matrix.shape[:-1], -1, BLOCK)
    exponents = np.frexp(np.abs(values).max(axis=-1))[1] - 1  # floor(log2); that of an all-zero block is of no account
    scales = np.maximum(exponents - LARGEST_EXPONENT + BIAS, 0).astype(np.uint8)
    scaled = np.ldexp(values, BIAS - scales[..., None].astype(np.int32))
    codes = np.clip(scaled, -LARGEST, LARGEST).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, scales
