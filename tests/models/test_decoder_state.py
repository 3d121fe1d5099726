"""A cached forward pass equals one forward pass over the whole row."""

from dataclasses import dataclass
from typing import Any, get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture, Family
from jaxsearchrl.models.decoder import build_model, forward, init_lora
from jaxsearchrl.models.state import Packed, Slots, empty_cache, is_bound
from jaxsearchrl.models.tiny import tiny_architecture

SIZES = {"vocab_size": 61, "d_model": 24, "heads": 6, "kv_heads": 2, "head_dim": 8, "mlp_dim": 32}
ARCH = tiny_architecture("llama", **SIZES)
L = 48


@pytest.fixture(scope="module", params=get_args(Family))
def run(request):
    """(tokens, state) -> (hidden, state), a model with non-zero LoRA; its `arch`."""
    arch = tiny_architecture(request.param, **SIZES)
    model = build_model(arch, LoraConfig(rank=3))
    rng = np.random.default_rng(0)
    base = {n: jnp.asarray(rng.normal(size=s.shape) * 0.3, s.dtype) for n, s in model.specs.items()}
    lora = {n: v + jnp.asarray(rng.normal(size=v.shape) * 0.1, v.dtype) for n, v in init_lora(model, 0).items()}
    run = jax.jit(lambda tokens, state: forward(model, base, lora, tokens, state))
    return Run(arch, run)


@dataclass(frozen=True)
class Run:
    arch: Architecture
    jitted: Any

    def __call__(self, tokens, state):
        return self.jitted(tokens, state)

    def cache(self, slots):
        return empty_cache(self.arch, slots, L, jnp.dtype(jnp.float32), block=4, chunk=8)


def whole(run, tokens):
    """One forward pass over the row alone, padded to 20 tokens."""
    padded = np.zeros((1, 20), np.int32)
    padded[0, : len(tokens)] = tokens
    return run(padded, Packed(jnp.arange(20)[None], jnp.ones((1, 20), jnp.int32)))[0][0, : len(tokens)]


def in_pieces(run, tokens, cuts, *, slot=1, block=16):
    """Extends slot by slot piece; pads each piece to 8 tokens."""
    cache = run.cache(3)
    out = []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        ids, at = np.zeros((1, 8), np.int32), np.full((1, 8), L, np.int32)
        ids[0, : stop - start], at[0, : stop - start] = tokens[start:stop], np.arange(start, stop)
        blocks = jnp.int32(-(-stop // block))
        state = Slots(cache, jnp.asarray([slot]), jnp.asarray(at), blocks, capacity=L, block=block, all_slots=False)
        hidden, state = run(ids, state)
        cache = state.layers
        out.append(hidden[0, : stop - start])
    return jnp.concatenate(out)


@pytest.mark.parametrize("cuts", [[8, 16], [1, 9, 17], [3, 4, 11, 19], [7, 8, 16, 17]])
def test_extending_in_pieces_is_one_forward(run, cuts):
    tokens = list(np.random.default_rng(1).integers(0, 61, 20))
    chex.assert_trees_all_close(in_pieces(run, tokens, cuts), whole(run, tokens), atol=1e-5)


def test_pieces_of_one_slot_may_share_a_pass(run):
    tokens = np.random.default_rng(2).integers(0, 61, 16)
    if is_bound(run.arch):
        pytest.skip("each piece goes on from where the one before has ended")
    positions, blocks = jnp.arange(16).reshape(2, 8), jnp.int32(1)
    state = Slots(run.cache(3), jnp.asarray([2, 2]), positions, blocks, capacity=L, block=16, all_slots=False)
    hidden, _ = run(tokens.reshape(2, 8), state)
    chex.assert_trees_all_close(hidden.reshape(16, -1), whole(run, tokens), atol=1e-5)


def test_more_blocks_change_no_bit(run):
    def slots(blocks):
        return Slots(run.cache(1), jnp.asarray([0]), jnp.arange(4)[None], jnp.int32(blocks), L, 4, True)

    np.testing.assert_array_equal(*(run(jnp.asarray([[5, 9, 2, 7]]), slots(blocks))[0] for blocks in (1, 12)))


def test_packed_rows_see_their_shared_beginning_but_not_each_other(run):
    rng = np.random.default_rng(3)
    shared, first, second = (list(rng.integers(0, 61, n)) for n in (5, 7, 4))
    positions = jnp.asarray([[*range(5), *range(5, 12), *range(5, 9), 0, 0]])
    segments = jnp.asarray([[1] * 5 + [2] * 7 + [3] * 4 + [0] * 2], jnp.int32)
    tokens = jnp.asarray([[*shared, *first, *second, 0, 0]], jnp.int32)
    hidden, _ = run(tokens, Packed(positions, segments))
    chex.assert_trees_all_close(hidden[0, :12], whole(run, [*shared, *first]), atol=1e-5)
    chex.assert_trees_all_close(hidden[0, 12:16], whole(run, [*shared, *second])[5:], atol=1e-5)
    assert np.isfinite(hidden).all()


def test_packed_rows_without_a_shared_beginning_do_not_see_each_other(run):
    rng = np.random.default_rng(3)
    first, second = list(rng.integers(0, 61, 7)), list(rng.integers(0, 61, 9))
    state = Packed(jnp.asarray([[*range(7), *range(9), 0, 0]]), jnp.asarray([[2] * 7 + [3] * 9 + [0] * 2], jnp.int32))
    hidden, _ = run(jnp.asarray([[*first, *second, 0, 0]], jnp.int32), state)
    chex.assert_trees_all_close(hidden[0, :7], whole(run, first), atol=1e-5)
    chex.assert_trees_all_close(hidden[0, 7:16], whole(run, second), atol=1e-5)


def test_blocks_of_queries_see_the_same_as_one(run):
    """More positions than a block of queries: the second block reads the first one's keys, by the same rule."""
    rng = np.random.default_rng(4)
    T, segments = 300, jnp.asarray([[1] * 100 + [2] * 120 + [3] * 80], jnp.int32)
    q, k, v = (rng.normal(size=(1, T, n, 4)).astype(np.float32) for n in (6, 2, 2))
    out, _ = Packed(jnp.zeros((1, T), jnp.int32), segments).attend(0, *map(jnp.asarray, (q, k, v)))
    for row in (0, 99, 100, 219, 220, 255, 256, 299):
        own = int(segments[0, row])
        seen = [i for i in range(row + 1) if int(segments[0, i]) in (1, own)]
        for head in range(6):
            scores = k[0, seen, head // 3] @ q[0, row, head] / 2
            p = np.exp(scores - scores.max())
            expected = p @ v[0, seen, head // 3] / p.sum()
            np.testing.assert_allclose(out[0, row, head], expected, atol=1e-5)


def test_later_tokens_attend_to_observations(run):
    tokens = list(range(1, 12))
    other = [*tokens[:4], 60, *tokens[5:]]
    a, b = whole(run, tokens), whole(run, other)
    np.testing.assert_array_equal(a[:4], b[:4])
    assert (np.abs(np.asarray(a[5:] - b[5:])).max(-1) > 1e-4).all()


def test_unknown_lora_modules_are_refused():
    with pytest.raises(ConfigError, match=r"lora\.modules.*lm_head"):
        build_model(ARCH, LoraConfig(modules=("q_proj", "lm_head")))
