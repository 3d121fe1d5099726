"""MXFP4: every value and scale, transformers' own reading, and how far a rounded value may lie from what it was."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxsearchrl.models.mxfp4 import BLOCK, dequantise, quantise

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
VALUES = np.array(E2M1 + [-value for value in E2M1])  # by code; the ninth is -0.0
CODES = np.array([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2, np.uint8)  # 0, 1, ..., 15 twice, low half first


def random_packed(seed=0, shape=(2, 5, 3)):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (*shape, 16), np.uint8), rng.integers(100, 150, shape, np.uint8)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("scale", [0, 1, 127, 254])
@pytest.mark.filterwarnings("ignore:overflow")
def test_the_sixteen_values_under_a_scale(scale, dtype):
    exact = np.tile(VALUES, 2) * 2.0 ** (scale - 127)
    exact = np.where(np.abs(exact) < 2.0**128, exact, np.copysign(np.inf, exact))  # past the end of either type
    on_host = dequantise(CODES[None], np.array([scale], np.uint8), dtype)
    assert on_host.dtype == dtype
    np.testing.assert_array_equal(on_host.astype(np.float64), exact)
    np.testing.assert_array_equal(np.signbit(on_host), np.tile(np.arange(16) > 7, 2))
    on_device = jax.jit(dequantise, static_argnums=2)(jnp.asarray(CODES[None]), jnp.array([scale], jnp.uint8), dtype)
    subnormal = (np.abs(exact) < 2.0**-126) | (scale == 0)  # the value or its scale
    assert on_device.dtype == dtype
    np.testing.assert_array_equal(np.asarray(on_device, np.float64)[~subnormal], exact[~subnormal])
    kept = np.asarray(on_device, np.float64)[subnormal]
    assert np.all((kept == 0) | (kept == exact[subnormal]))


def test_scale_255_makes_a_block_nan_and_only_that():
    blocks, scales = np.stack([CODES, CODES]), np.array([255, 127], np.uint8)
    for like in (np.asarray, jnp.asarray):
        values = np.asarray(dequantise(like(blocks), like(scales), np.float32))
        assert np.isnan(values[:BLOCK]).all()
        np.testing.assert_array_equal(values[BLOCK:], np.tile(VALUES, 2))


def test_each_block_has_its_scale_and_blocks_follow_each_other():
    ones, twos = np.full(16, 0x22, np.uint8), np.full(16, 0x44, np.uint8)
    values = dequantise(
        np.array([[ones, twos], [twos, ones]]), np.array([[127, 130], [126, 128]], np.uint8), np.float32
    )
    np.testing.assert_array_equal(values, [[1.0] * 32 + [16.0] * 32, [1.0] * 32 + [2.0] * 32])


def test_host_and_device_agree():
    blocks, scales = random_packed()
    on_device = jax.jit(dequantise, static_argnums=2)(jnp.asarray(blocks), jnp.asarray(scales), jnp.bfloat16)
    assert on_device.shape == (2, 5, 96)
    np.testing.assert_array_equal(dequantise(blocks, scales, ml_dtypes.bfloat16), on_device)


@pytest.mark.parity
def test_transformers_reads_the_same(torch):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = random_packed()
    scales[0, 0] = [0, 1, 250]
    theirs = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    assert theirs.shape == (2, 96, 5)
    ours = dequantise(blocks, scales, np.float32).swapaxes(1, 2)
    np.testing.assert_array_equal(ours, theirs.float().numpy())


def test_quantise_by_hand():
    block = np.zeros(BLOCK, np.float32)
    block[:9] = [7.9, 6.1, -5, 3.5, 2.5, 1.25, 0.75, -0.25, 0.2]  # halfway: to the even code, that is 4, 4, 2, 1, 1, 0
    blocks, scales = quantise(block)
    assert scales.tolist() == [127]  # 4 <= 7.9 < 8
    assert blocks.shape == (1, 16)
    np.testing.assert_array_equal(dequantise(blocks, scales, np.float32)[:9], [6, 6, -4, 4, 2, 1, 1, 0, 0])
    assert quantise(block * 2.0**-9)[1].tolist() == [118]
    np.testing.assert_array_equal(quantise(block * 2.0**-9)[0], blocks)


@pytest.mark.parametrize("scale", [0, 1, 5, 127, 252])
@pytest.mark.parametrize("largest", E2M1)
def test_what_the_format_can_say_it_says_exactly(scale, largest):
    """Also where another scale would say it: of a block whose largest code is small."""
    codes = np.random.default_rng(0).choice([value for value in E2M1 if value <= largest], (4, BLOCK))
    matrix = np.concatenate([codes, -codes], axis=-1) * 2.0 ** (scale - 127)
    np.testing.assert_array_equal(dequantise(*quantise(matrix), np.float32), matrix)


@given(
    arrays(np.float32, (3, 2 * BLOCK), elements=st.floats(-100, 100, width=32, allow_subnormal=False)),
    st.integers(-60, 60),
)
def test_the_error_is_at_most_half_a_step_of_the_grid(matrix, exponent):
    matrix = np.ldexp(matrix, exponent).astype(np.float32)
    blocks, scales = quantise(matrix)
    scale = np.repeat(2.0 ** (scales.astype(int) - 127), BLOCK, axis=-1)
    exact = np.abs(matrix) / scale
    rounded = np.abs(dequantise(blocks, scales, np.float64)) / scale
    step = np.select([exact < 2, exact < 4], [0.5, 1], 2)
    inside = exact <= 6
    assert np.all(np.abs(rounded - exact)[inside] <= step[inside] / 2)
    assert np.all(rounded[~inside] == 6)
    largest = exact.reshape(3, 2, BLOCK).max(-1)
    assert np.all((largest < 8) & ((largest >= 4) | (scales == 0) | (largest == 0)))


def test_a_byte_by_hand():
    """Codes 2 and 7, the low half first, are 1 and 6; scale byte 128 doubles them."""
    values = dequantise(np.full((1, 16), 0x72, np.uint8), np.array([128], np.uint8), np.float32)
    assert values.tolist() == [2.0, 12.0] * 16
