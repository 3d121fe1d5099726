"""The description of a decoder, from and to Hugging Face's config.json."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import (
    Family,
    Rope,
    tensor_shapes,
    yarn_attention_factor,
)
from jaxsearchrl.models.hf_config import architecture_from_hf, architecture_to_hf
from jaxsearchrl.models.tiny import tiny_architecture

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}


def read(**changes):
    return architecture_from_hf(LLAMA | changes, "folder/config.json")


def test_absent_keys_take_the_defaults_of_transformers():
    config = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "rms_norm_eps", "eos_token_id")}
    arch = architecture_from_hf(config, "c")
    assert (arch.kv_heads, arch.head_dim, arch.norm_eps) == (3, 16, 1e-6)
    assert (arch.tied, arch.qkv_bias, arch.o_bias, arch.mlp_bias) == (False, False, False, False)
    assert arch.rope == Rope(theta=10000.0)
    assert arch.eos_ids == ()


def test_qwen2_has_biases_on_q_k_v_only():
    arch = read(model_type="qwen2", attention_bias=True)
    assert (arch.qkv_bias, arch.o_bias, arch.mlp_bias) == (True, False, False)


def test_llama_attention_bias_covers_the_output_projection():
    arch = read(attention_bias=True, mlp_bias=True)
    assert (arch.qkv_bias, arch.o_bias, arch.mlp_bias) == (True, True, True)


def test_both_spellings_of_rope_read_alike():
    new = read(rope_parameters=YARN)
    old = read(rope_theta=1e4, rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 64})
    assert new == old
    assert new.rope.attention_factor == pytest.approx(1.1386294)  # 0.1 · ln 4 + 1


def test_original_positions_outside_the_rope_dictionary_win():
    arch = read(rope_parameters=YARN, original_max_position_embeddings=32)
    assert arch.rope.original_positions == 32


def test_yarn_with_both_mscales_takes_their_ratio():
    arch = read(rope_parameters=YARN | {"mscale": 2.0, "mscale_all_dim": 0.5})
    assert arch.rope.attention_factor == pytest.approx(yarn_attention_factor(4, 2.0) / yarn_attention_factor(4, 0.5))


def test_several_stop_ids_are_kept_in_order_without_repetition():
    assert read(eos_token_id=[7, 2, 7]).eos_ids == (7, 2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config is set, and only gpt_oss's mxfp4"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "48"}, "hidden_size is '48'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"num_key_value_heads": 2}, "3 query heads cannot share 2"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0"),
        ({"layer_types": 3}, "layer_types is 3"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"rope_parameters": YARN | {"original_max_position_embeddings": 0}}, "original_max_position_embeddings is 0"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor is 0.5"),
        ({"rope_parameters": YARN | {"short_factor": [1.0]}}, "short_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            "high_freq_factor",
        ),
    ],
)
def test_what_we_do_not_compute_is_refused_by_its_key(changes, named):
    with pytest.raises(ConfigError, match=r"^folder/config.json") as error:
        read(**changes)
    assert named in str(error.value)


ropes = st.one_of(
    st.just(Rope(theta=5e5)),
    st.builds(
        Rope, kind=st.sampled_from(["linear", "dynamic"]), factor=st.floats(1, 8), original_positions=st.just(4096)
    ),
    st.builds(Rope, kind=st.just("llama3"), factor=st.floats(1, 32), original_positions=st.integers(16, 4096)),
    st.builds(
        Rope,
        kind=st.just("yarn"),
        factor=st.floats(1, 32),
        original_positions=st.integers(16, 4096),
        beta_fast=st.floats(16, 64),
        attention_factor=st.floats(0.5, 2),
    ),
)


@given(
    st.sampled_from(get_args(Family)),
    st.booleans(),
    st.lists(st.integers(0, 30), unique=True),
    ropes,
)
def test_writing_and_reading_gives_the_same_architecture(family, tied, eos, rope):
    arch = tiny_architecture(family, vocab_size=31, tied=tied, eos_ids=tuple(eos), rope=rope)
    assert architecture_from_hf(architecture_to_hf(arch), "c") == arch
    assert hash(arch) == hash(architecture_from_hf(architecture_to_hf(arch), "c"))


def test_tensor_shapes_of_a_hand_counted_model():
    shapes = tensor_shapes(tiny_architecture("qwen2", vocab_size=31, layers=1, tied=False))
    assert len(shapes) == 3 + 2 + 7 + 3  # embedding, head, norm; two norms, seven linears, three biases
    assert shapes["lm_head.weight"] == (31, 48)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (16, 48)
    assert shapes["model.layers.0.self_attn.k_proj.bias"] == (16,)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (48, 80)


@pytest.mark.parity
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_transformers_reads_the_names_and_shapes_that_we_expect(family, torch):
    import transformers

    arch = tiny_architecture(family, vocab_size=31, tied=False)
    config = transformers.AutoConfig.for_model(**architecture_to_hf(arch))
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert {name: tuple(p.shape) for name, p in model.state_dict().items()} == tensor_shapes(arch)
