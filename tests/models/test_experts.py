"""Experts: both ways of running them compute the same, and it is what a few lines of numpy say."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Clamp, Experts, linear_shapes
from jaxsearchrl.models.experts import SparseMlp, route, tiles
from jaxsearchrl.models.hf_config import architecture_from_hf, architecture_to_hf
from jaxsearchrl.models.peft_adapter import adapter_of, lora_of
from jaxsearchrl.models.tiny import tiny_architecture

EXPERTS = Experts(count=5, chosen=2, width=6, normalised=True)
ARCH = tiny_architecture("qwen3_moe", vocab_size=31, d_model=8, experts=EXPERTS, dense_layers=())
LORA = LoraConfig(2, 3.0, ("gate_proj", "up_proj", "down_proj"))


@pytest.fixture(scope="module")
def mlp():
    """Random weights; LoRA is not zero."""
    mlp = SparseMlp("mlp", ARCH, EXPERTS, LORA, jnp.float32)
    rng = np.random.default_rng(0)
    state = nnx.state(mlp, (nnx.Param, nnx.LoRAParam))
    nnx.update(mlp, jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.5, x.dtype), state))
    return mlp


def x_of(rows, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(rows, 8)), jnp.float32)


def by_hand(mlp, x):
    """Token by token, expert by expert."""

    def linear(name, expert, x):
        part = mlp.experts[name]
        return x @ part.weight[expert] + x @ part.lora_a[expert] @ part.lora_b[expert] * 1.5

    out = []
    for row in np.asarray(x):
        scores = np.exp(mlp.gate[...] @ row)
        chosen = np.argsort(-scores)[:2]
        shares = scores[chosen] / scores[chosen].sum()
        out.append(0.0)
        for expert, share in zip(chosen, shares, strict=True):
            gate, up = linear("gate_proj", expert, row), linear("up_proj", expert, row)
            out[-1] += share * linear("down_proj", expert, gate / (1 + np.exp(-gate)) * up)
    return np.stack(out)


def test_it_computes_what_is_written(mlp):
    chex.assert_trees_all_close(mlp(x_of(7))[0], by_hand(mlp, x_of(7)), rtol=1e-4, atol=1e-5)
    (out, ids), (flat_out, flat_ids) = mlp(x_of(6).reshape(2, 3, 8)), mlp(x_of(6))
    chex.assert_trees_all_close(out.reshape(6, 8), flat_out, atol=1e-6)
    scores = np.asarray(x_of(6) @ mlp.gate[...].T)
    assert ids.reshape(6, 2).tolist() == flat_ids.tolist() == np.argsort(-scores)[:, :2].tolist()


@pytest.fixture(scope="module")
def packed_mlp():
    """gpt-oss's, in MXFP4."""
    experts = Experts(5, 2, 32, True, fused=True, clamp=Clamp(2.0, 1.702))
    arch = tiny_architecture("gpt_oss", vocab_size=31, d_model=64, experts=experts)
    mlp = SparseMlp("mlp", arch, experts, LoraConfig(2, 3.0, ("gate_up_proj", "down_proj")), jnp.float32, packed=True)
    rng = np.random.default_rng(0)

    def draw(x):
        if x.dtype == jnp.uint8:  # blocks of 16 bytes; scales of at most 1/2, so that what follows is of order 1
            return jnp.asarray(rng.integers(*((0, 256) if x.shape[-1] == 16 else (122, 127)), x.shape), x.dtype)
        return jnp.asarray(rng.normal(size=x.shape) * 0.5, x.dtype)

    nnx.update(mlp, jax.tree.map(draw, nnx.state(mlp, (nnx.Param, nnx.LoRAParam))))
    return mlp


@pytest.mark.parametrize(("kind", "rows"), [("mlp", 1), ("mlp", 700), ("packed_mlp", 700)])
def test_both_ways_compute_the_same_and_have_the_same_gradients(request, kind, rows):
    """Of 700 rows some experts get more than one tile."""
    mlp = request.getfixturevalue(kind)
    definition, lora, rest = nnx.split(mlp, nnx.LoRAParam, ...)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(rows, mlp.gate.shape[1])), jnp.float32)

    def value(lora, x, rest, way):
        mlp = nnx.merge(definition, lora, rest)
        return (getattr(mlp, way)(x, *route(x @ mlp.gate[...].T, mlp.sizes)) ** 2).mean()

    # The packed bytes are arguments: of constants, XLA's CPU backend folds their conversion wrongly.
    run = jax.jit(jax.value_and_grad(value, argnums=(0, 1)), static_argnums=3)
    (tiled, tiled_grads), (dense, dense_grads) = (run(lora, x, rest, way) for way in ("tiled", "dense"))
    chex.assert_trees_all_close(tiled, dense, rtol=1e-5)
    chex.assert_trees_all_close(tiled_grads, dense_grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 40])
@given(ids=arrays(np.int32, 40, elements=st.integers(0, 4)))
def test_tiles_have_every_choice_once_and_under_its_own_expert(size, ids):
    experts, choices = map(np.asarray, tiles(jnp.asarray(ids), 5, size))
    pairs = zip(choices.ravel().tolist(), np.repeat(experts, size).tolist(), strict=True)
    assert sorted(pair for pair in pairs if pair[0] < 40) == list(enumerate(ids))


def test_a_token_is_the_same_whoever_is_beside_it(mlp):
    x = x_of(9)
    chex.assert_trees_all_close(mlp(x)[0][4:5], mlp(x[4:5])[0], atol=1e-5)


def test_an_expert_that_nobody_takes_has_no_gradient(mlp):
    definition, lora, rest = nnx.split(mlp, nnx.LoRAParam, ...)
    ids, shares = jnp.asarray([[0, 3], [3, 1]]), jnp.full((2, 2), 0.5)
    grads = jax.grad(lambda lora: (nnx.merge(definition, lora, rest).tiled(x_of(2), ids, shares) ** 2).sum())(lora)
    for gradient in jax.tree.leaves(grads):
        assert [bool(jnp.any(expert != 0)) for expert in gradient] == [True, True, False, True, False]


def test_shares_are_of_all_experts_or_of_the_chosen_ones():
    logits = jnp.log(jnp.asarray([[0.5, 0.1, 0.3, 0.06, 0.04]]))
    ids, shares = route(logits, EXPERTS)
    assert ids.tolist() == [[0, 2]]
    chex.assert_trees_all_close(shares, jnp.asarray([[0.625, 0.375]]), rtol=1e-5)
    chex.assert_trees_all_close(
        route(logits, replace(EXPERTS, normalised=False))[1], jnp.asarray([[0.5, 0.3]]), rtol=1e-5
    )


def test_an_adapter_has_a_pair_for_each_expert_and_comes_back():
    rng = np.random.default_rng(0)
    shapes = {"layers.0.mlp.experts.up_proj": ((5, 8, 2), (5, 2, 6)), "layers.0.self_attn.q_proj": ((8, 2), (2, 48))}
    lora = {
        f"{name}.lora_{p}": rng.normal(size=s) for name, pair in shapes.items() for p, s in zip("ab", pair, strict=True)
    }
    adapter = adapter_of(lora)
    assert adapter.keys() == {"layers.0.self_attn.q_proj", *(f"layers.0.mlp.experts.{e}.up_proj" for e in range(5))}
    np.testing.assert_array_equal(
        adapter["layers.0.mlp.experts.3.up_proj"][0], lora["layers.0.mlp.experts.up_proj.lora_a"][3]
    )
    back = lora_of(dict(reversed(adapter.items())))
    assert back.keys() == lora.keys()
    for name, value in lora.items():
        np.testing.assert_array_equal(back[name], value)


def test_which_layers_have_experts_is_read_in_all_spellings():
    config = architecture_to_hf(replace(ARCH, layers=4))
    assert architecture_from_hf(config, "c").dense_layers == ()
    assert architecture_from_hf(config | {"decoder_sparse_step": 2}, "c").dense_layers == (0, 2)
    assert architecture_from_hf(config | {"mlp_only_layers": [3]}, "c").dense_layers == (3,)
    named = {key: value for key, value in config.items() if key != "num_experts"} | {"num_local_experts": 5}
    assert architecture_from_hf(named, "c").experts == EXPERTS
    arch = architecture_from_hf(config | {"mlp_only_layers": [3]}, "c")
    assert len(linear_shapes(arch, 0)) == 4 + 3 * 5
    assert len(linear_shapes(arch, 3)) == 4 + 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": None}, "num_experts is missing"),
        ({"num_experts_per_tok": 6}, "a token takes 6 experts, but there are 5"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers is 'all', but must be a list of layer numbers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    ],
)
def test_impossible_experts_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        architecture_from_hf(architecture_to_hf(ARCH) | change, "config.json")
