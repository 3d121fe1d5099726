"""Rotary positions: one frequency per pair of dimensions, and the rotation itself.

Dimension i of a head turns with dimension i + H/2 (the "rotate half" layout of Hugging Face checkpoints).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxsearchrl.models.architecture import Architecture, Rope


def rope_frequencies(arch: Architecture) -> tuple[np.ndarray, float]:
    """Returns inv_freq [rotated dimensions / 2] float32 (radians per position) and the scale of cosine and sine.

    Sources: arXiv 2104.09864 (default), 2306.15595 (linear), 2309.00071 (yarn), the Llama 3.1 reference code (llama3).
    "dynamic" equals "default" inside the model's own context, which is all that `max_positions` allows.
    """
    rope, size = arch.rope, arch.rotary_dim
    exponents = np.arange(size // 2, dtype=np.float32) * np.float32(2) / np.float32(size)
    inv_freq = np.float32(1) / np.power(np.float32(rope.theta), exponents)
    if rope.kind == "linear":
        return inv_freq / np.float32(rope.factor), 1.0
    if rope.kind == "llama3":
        return _llama3(inv_freq, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(inv_freq, rope, size), rope.attention_factor
    return inv_freq, 1.0


def apply_rope(x: jax.Array, positions: jax.Array, inv_freq: np.ndarray | jax.Array, scale: float) -> jax.Array:
    """Rotates x [B, T, N, H] by its absolute positions [B, T], in float32; returns the dtype of x.

    Of a head's dimensions the first 2 · len(inv_freq) are rotated; the rest stay as they are.
    """
    angles = positions[..., None, None].astype(jnp.float32) * inv_freq[None, None, None]  # [B, T, 1, rotated / 2]
    cos, sin = jnp.cos(angles) * scale, jnp.sin(angles) * scale
    half = len(inv_freq)
    first, second, rest = jnp.split(x.astype(jnp.float32), (half, 2 * half), axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def _llama3(inv_freq: np.ndarray, rope: Rope) -> np.ndarray:
    """Keeps fast frequencies, divides slow ones by the factor, blends between."""
    turns = rope.original_positions * inv_freq / (2 * math.pi)  # rotations within the original context
    keep = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
    return (inv_freq * (keep + (1 - keep) / rope.factor)).astype(np.float32)


def _yarn(inv_freq: np.ndarray, rope: Rope, size: int) -> np.ndarray:
    """As llama3, but the blend is linear in the dimension instead of the rotations ("NTK by parts")."""

    def dimension(rotations: float) -> float:
        return size * math.log(rope.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low if high != low else 0.001  # a step instead of a ramp; never a division by zero
    keep = 1 - np.clip((np.arange(len(inv_freq)) - low) / width, 0, 1)
    return (inv_freq * (keep + (1 - keep) / rope.factor)).astype(np.float32)
