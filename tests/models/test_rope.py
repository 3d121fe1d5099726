"""Rotary frequencies by hand and against transformers; what a rotation must keep."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.models.architecture import Rope
from jaxsearchrl.models.hf_config import architecture_to_hf
from jaxsearchrl.models.rope import apply_rope, rope_frequencies
from jaxsearchrl.models.tiny import tiny_architecture

ROPES = {
    "default": Rope(theta=1e5),
    "linear": Rope(kind="linear", factor=4.0, original_positions=64),
    "dynamic": Rope(kind="dynamic", factor=4.0, original_positions=4096),
    "llama3": Rope(theta=5e5, kind="llama3", factor=8.0, original_positions=64),
    "yarn": Rope(theta=1e6, kind="yarn", factor=4.0, original_positions=64, attention_factor=1.1386294),
    "yarn, narrow ramp": Rope(
        theta=1e4, kind="yarn", factor=2.0, original_positions=8, beta_fast=1.01, beta_slow=1.0, attention_factor=1.07
    ),
}


def frequencies(rope, head_dim=16):
    return rope_frequencies(tiny_architecture("llama", vocab_size=31, rope=rope, head_dim=head_dim))


def test_hand_worked_frequencies():
    inv_freq, scale = frequencies(Rope(theta=10000.0), head_dim=4)
    np.testing.assert_allclose(inv_freq, [1.0, 0.01], rtol=1e-6)  # 10000 ** (-2i / 4)
    assert inv_freq.dtype == np.float32
    assert scale == 1.0


def test_hand_worked_llama3():
    # theta 16 and head 8: 1, 1/2, 1/4, 1/8. Within 2π·16 positions they turn 16, 8, 4, 2 times.
    rope = Rope(theta=16.0, kind="llama3", factor=2.0, original_positions=round(2 * math.pi * 16))
    turns = rope.original_positions / (2 * math.pi) / np.array([1, 2, 4, 8])
    keep = [1, 1, 1, (turns[3] - 1) / 3]
    expected = [f * (k + (1 - k) / 2) for f, k in zip([1, 0.5, 0.25, 0.125], keep, strict=True)]
    np.testing.assert_allclose(frequencies(rope, 8)[0], expected, rtol=1e-5)


def test_hand_worked_yarn():
    # Dimension 8·ln(32 / 2π·r) / (2·ln 100) turns r times in 32 positions: 1.06 for r = 1.5, 2.02 for r = 0.5.
    # So the ramp goes from dimension 1, still kept, to dimension 3, divided by 4; dimension 2 is half and half.
    rope = Rope(100.0, "yarn", 4.0, original_positions=32, beta_fast=1.5, beta_slow=0.5, attention_factor=1.14)
    inv_freq, scale = frequencies(rope, 8)
    np.testing.assert_allclose(inv_freq, [1, 0.316228, 0.1 * (0.5 + 0.125), 0.0316228 / 4], rtol=1e-5)
    assert scale == 1.14


def test_dynamic_is_default_within_the_context():
    np.testing.assert_array_equal(frequencies(ROPES["dynamic"])[0], frequencies(Rope())[0])


def test_hand_worked_quarter_turn():
    # One pair, frequency 1, position such that the angle is π/2: (x, y) -> (-y, x).
    x = jnp.array([3.0, 4.0]).reshape(1, 1, 1, 2)
    turned = apply_rope(x, jnp.array([[1]]), np.array([math.pi / 2], np.float32), 1.0)
    np.testing.assert_allclose(turned.reshape(2), [-4.0, 3.0], atol=1e-6)


def test_a_dimension_turns_with_the_one_half_a_head_away():
    x = jnp.zeros((1, 1, 1, 4)).at[..., 0].set(1.0)
    turned = apply_rope(x, jnp.array([[1]]), np.array([math.pi / 2, 0.0], np.float32), 1.0)
    np.testing.assert_allclose(turned.reshape(4), [0.0, 0.0, 1.0, 0.0], atol=1e-6)


def test_scale_and_dtype():
    x = jnp.ones((2, 3, 1, 4), jnp.bfloat16)
    plain = apply_rope(x, jnp.zeros((2, 3), jnp.int32), np.ones(2, np.float32), 2.0)
    assert plain.dtype == jnp.bfloat16
    np.testing.assert_array_equal(plain.astype(jnp.float32), 2.0 * np.ones((2, 3, 1, 4)))


@settings(max_examples=30)
@given(st.integers(0, 4000), st.integers(0, 64), st.integers(0, 2**32 - 1))
def test_scores_depend_on_the_distance_only(start, distance, seed):
    q, k = np.random.default_rng(seed).standard_normal((2, 1, 1, 1, 16), dtype=np.float32)
    inv_freq, _ = frequencies(Rope())

    def score(at):
        turned = apply_rope(q, jnp.array([[at + distance]]), inv_freq, 1.0)
        return float(jnp.sum(turned * apply_rope(k, jnp.array([[at]]), inv_freq, 1.0)))

    assert score(start) == pytest.approx(score(0), abs=0.02)  # float32 angles of thousands of radians


@pytest.mark.parity
@pytest.mark.parametrize("name", ROPES)
def test_equals_transformers(name, torch):
    from transformers import AutoConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    arch = tiny_architecture("llama", vocab_size=31, rope=ROPES[name])
    config = AutoConfig.for_model(**architecture_to_hf(arch))
    theirs = LlamaRotaryEmbedding(config)
    inv_freq, scale = rope_frequencies(arch)
    np.testing.assert_allclose(inv_freq, theirs.inv_freq.numpy(), rtol=1e-6)
    assert scale == pytest.approx(theirs.attention_scaling)

    x = np.random.default_rng(0).standard_normal((2, 5, 3, 16), dtype=np.float32)
    positions = np.array([[0, 1, 2, 3, 4], [7, 100, 101, 3000, 4000]])
    cos, sin = theirs(torch.from_numpy(x), torch.from_numpy(positions))
    turned, _ = apply_rotary_pos_emb(torch.from_numpy(x), torch.from_numpy(x), cos, sin, unsqueeze_dim=2)
    ours = apply_rope(jnp.asarray(x), jnp.asarray(positions), inv_freq, scale)
    np.testing.assert_allclose(ours, turned.numpy(), atol=2e-3)
