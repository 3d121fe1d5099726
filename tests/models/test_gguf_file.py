"""GGUF files written here with the `gguf` package: order of rows, tied heads, quantised blocks, broken files."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.gguf_header import read_header
from jaxsearchrl.models.architecture import Rope, tensor_shapes
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.fingerprint import sample_rows
from jaxsearchrl.models.gguf_file import hf_name
from jaxsearchrl.models.rope import rope_frequencies
from jaxsearchrl.models.tiny import tiny_architecture

SIZES = {"d_model": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp_dim": 96, "eos_ids": (2,)}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def architecture(family="llama", **overrides):
    return tiny_architecture(family, vocab_size=40, **(SIZES | overrides))


def draw(arch, seed=0):
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s, dtype=np.float32) for n, s in tensor_shapes(arch).items()}


def gguf_names(arch):
    """Hugging Face name -> GGUF name, from the `gguf` package's own table."""
    kind = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[arch.family]
    table = gguf.get_tensor_name_map(kind, arch.layers)
    return {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in tensor_shapes(arch)}


def interleaved(rows, heads):
    """The order in which llama.cpp keeps the rows of q and k: 0, H/2, 1, H/2 + 1, ... of each head."""
    half = rows.shape[0] // heads // 2
    order = [head * 2 * half + i + part * half for head in range(heads) for i in range(half) for part in (0, 1)]
    return rows[order]


def write(path, arch, tensors, *, kinds=None, extra=None, blocks=None, values=None, tokens=40):
    """Writes tensors given by Hugging Face names.

    kinds: name -> quantisation; extra: GGUF name -> array; blocks: GGUF name -> (packed rows, quantisation).
    """
    writer = gguf.GGUFWriter(path, arch.family)
    writer.add_block_count(arch.layers)
    writer.add_context_length(arch.max_positions)
    writer.add_embedding_length(arch.d_model)
    writer.add_feed_forward_length(arch.mlp_dim)
    writer.add_head_count(arch.heads)
    writer.add_head_count_kv(arch.kv_heads)
    writer.add_layer_norm_rms_eps(arch.norm_eps)
    writer.add_rope_freq_base(arch.rope.theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(tokens)])
    writer.add_eos_token_id(2)
    for key, value in (values or {}).items():
        kind = {str: gguf.GGUFValueType.STRING, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
        writer.add_key_value(key, value, kind[type(value)])
    names = gguf_names(arch) | {HEAD: "output.weight"}
    for name, tensor in tensors.items():
        if arch.family == "llama" and (".q_proj." in name or ".k_proj." in name):
            tensor = interleaved(tensor, arch.heads if ".q_proj." in name else arch.kv_heads)
        kind = (kinds or {}).get(name, gguf.GGMLQuantizationType.F32)
        writer.add_tensor(names[name], gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    for name, (rows, kind) in (blocks or {}).items():
        writer.add_tensor(name, rows, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "arch",
    [
        architecture(),
        architecture(tied=False, qkv_bias=True, o_bias=True),
        architecture("qwen2"),
        architecture("qwen2", tied=False),
        architecture("qwen3"),
    ],
    ids=["llama", "llama untied, biases", "qwen2", "qwen2 untied", "qwen3"],
)
def test_reads_back_in_hugging_face_names_and_order(tmp_path, arch):
    tensors = draw(arch)
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", arch, tensors))
    assert replace(checkpoint.architecture, norm_eps=arch.norm_eps) == arch
    assert checkpoint.architecture.norm_eps == pytest.approx(arch.norm_eps)
    assert checkpoint.names() == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), tensor, err_msg=name)
        assert checkpoint.shape(name) == tensor.shape


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_part_of_a_tensor_is_that_part_of_the_whole(tmp_path, family):
    arch = architecture(family, qkv_bias=True)
    tensors = draw(arch)
    matrices = {name: gguf.GGMLQuantizationType.Q8_0 for name, tensor in tensors.items() if tensor.ndim == 2}
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", arch, tensors, kinds=matrices))
    rows, columns = slice(3, 21), slice(30, 50)  # within heads and within blocks
    for name in tensors:
        whole = checkpoint.tensor(name)
        for index in ((rows,), (slice(None), columns), (rows, columns))[: 1 if whole.ndim == 1 else 3]:
            np.testing.assert_array_equal(checkpoint.tensor(name, index), whole[index], err_msg=name)
    assert checkpoint.packed(EMBEDDING) is None


def test_the_rows_of_a_llama_file_were_really_permuted(tmp_path):
    arch = architecture()
    tensors = draw(arch)
    _, stored = read_header(write(tmp_path / "m.gguf", arch, tensors))
    name = "model.layers.0.self_attn.k_proj.weight"
    raw = stored["blk.0.attn_k.weight"].data.view(np.float32)
    np.testing.assert_array_equal(raw[:4], tensors[name][[0, 8, 1, 9]])


def test_names():
    assert hf_name("blk.12.ffn_down.weight") == "model.layers.12.mlp.down_proj.weight"
    assert hf_name("blk.0.attn_q.bias") == "model.layers.0.self_attn.q_proj.bias"
    assert hf_name("output_norm.weight") == "model.norm.weight"
    assert hf_name("blk.0.ffn_gate_inp.weight") == "blk.0.ffn_gate_inp.weight"


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_blocks_come_near_what_was_stored(tmp_path, kind):
    arch = architecture()
    tensors = draw(arch)
    kind = gguf.GGMLQuantizationType[kind]
    matrices = {name: kind for name, tensor in tensors.items() if tensor.ndim == 2}
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", arch, tensors, kinds=matrices))
    for name in matrices:
        read = checkpoint.tensor(name)
        assert read.dtype == np.float32
        distance = np.linalg.norm(read - tensors[name]) / np.linalg.norm(tensors[name])
        assert distance < {"F16": 1e-3, "BF16": 3e-3, "Q8_0": 0.01}.get(kind.name, 0.12)


def embedding_of_blocks(path, kind, block):
    """Reads an embedding whose rows are all the one hand-made block of 256 weights."""
    arch = architecture(d_model=256, head_dim=64, layers=1)
    rows = np.tile(np.frombuffer(block, np.uint8), (40, 1))
    tensors = {name: tensor for name, tensor in draw(arch).items() if name != EMBEDDING}
    return open_checkpoint(write(path, arch, tensors, blocks={"token_embd.weight": (rows, kind)})).tensor(EMBEDDING)


def test_hand_made_q4_k_block(tmp_path):
    # Scale 1, minimum 0, every sub-scale 1; the low nibbles 3 fill 32 weights, the high nibbles 5 the next 32.
    block = np.float16([1, 0]).tobytes() + bytes([1] * 4 + [0] * 4 + [1] * 4) + bytes([0x53] * 128)
    rows = embedding_of_blocks(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q4_K, block)
    np.testing.assert_array_equal(rows, np.tile(np.repeat([3.0, 5.0] * 4, 32), (40, 1)))


def test_hand_made_q6_k_block(tmp_path):
    # Low four bits 1, high two bits 2: 33 less the offset of 32 is 1, times the sub-scale 7, times 0.5.
    block = bytes([0x11] * 128) + bytes([0xAA] * 64) + bytes([7] * 16) + np.float16(0.5).tobytes()
    rows = embedding_of_blocks(tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q6_K, block)
    np.testing.assert_array_equal(rows, np.full((40, 256), 3.5))


@pytest.mark.parametrize("better", [EMBEDDING, HEAD])
def test_a_tied_head_stored_twice_uses_the_better_copy(tmp_path, better):
    arch = architecture("qwen2")
    tensors = draw(arch)
    kinds = {EMBEDDING: gguf.GGMLQuantizationType.Q4_0, HEAD: gguf.GGMLQuantizationType.Q4_0}
    kinds[better] = gguf.GGMLQuantizationType.Q8_0
    path = write(tmp_path / "m.gguf", arch, tensors | {HEAD: tensors[EMBEDDING]}, kinds=kinds)
    checkpoint = open_checkpoint(path)
    assert checkpoint.architecture.tied
    assert HEAD not in checkpoint.names()
    best = gguf.quants.dequantize(
        gguf.quants.quantize(tensors[EMBEDDING], gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0
    )
    np.testing.assert_array_equal(checkpoint.tensor(EMBEDDING), best)


def test_a_head_of_its_own_stays(tmp_path):
    arch = architecture("qwen2", tied=False)
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", arch, draw(arch)))
    assert not checkpoint.architecture.tied
    assert HEAD in checkpoint.names()


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("change", ["everywhere a little", "one row of many"])
def test_a_head_that_only_resembles_the_embedding_stays(tmp_path, kind, change):
    """In one quantisation, or both as floats, the two are compared whole and exactly."""
    arch = architecture("qwen2", tied=False, layers=1)
    tensors, kind = draw(arch), gguf.GGMLQuantizationType[kind]
    head = tensors[EMBEDDING].copy()
    if change == "one row of many":
        head[17] *= -1
    else:
        head += 0.15 * tensors[HEAD]
    kinds = {HEAD: kind, EMBEDDING: kind if kind.name == "Q8_0" else gguf.GGMLQuantizationType.F32}
    path = write(tmp_path / "m.gguf", arch, tensors | {HEAD: head}, kinds=kinds)
    assert HEAD in open_checkpoint(path).names()


def test_two_quantisations_are_compared_on_many_rows(tmp_path):
    arch = architecture("qwen2", tied=False, layers=1)
    tensors = draw(arch)
    rows = sample_rows(tensors[HEAD].shape)
    tensors[HEAD][rows] = tensors[EMBEDDING][rows]
    kinds = {HEAD: gguf.GGMLQuantizationType.Q8_0, EMBEDDING: gguf.GGMLQuantizationType.Q4_0}
    assert HEAD in open_checkpoint(write(tmp_path / "m.gguf", arch, tensors, kinds=kinds)).names()


@pytest.mark.parametrize("kinds", [("F32", "F32"), ("F16", "F32"), ("F32", "BF16"), ("Q4_0", "Q4_0")])
def test_an_embedding_stored_twice_is_one_matrix(tmp_path, kinds):
    arch = architecture("qwen2", layers=1)
    tensors = draw(arch)
    tensors[EMBEDDING] = np.sign(tensors[EMBEDDING])  # the same number in every kind of float
    stored = dict(zip((EMBEDDING, HEAD), (gguf.GGMLQuantizationType[kind] for kind in kinds), strict=True))
    path = write(tmp_path / "m.gguf", arch, tensors | {HEAD: tensors[EMBEDDING]}, kinds=stored)
    assert open_checkpoint(path).architecture.tied


def test_padding_rows_of_the_vocabulary_are_kept(tmp_path):
    arch = architecture("qwen2")
    path = write(tmp_path / "m.gguf", arch, draw(arch), tokens=35, values={"qwen2.vocab_size": 35})
    assert open_checkpoint(path).architecture.vocab_size == 40


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_frequencies_are_recognised_in_their_tensor(tmp_path, factor):
    plain = architecture(rope=Rope(theta=5e5))
    llama3 = replace(plain, rope=Rope(5e5, "llama3", factor, 8192))
    factors = (rope_frequencies(plain)[0] / rope_frequencies(llama3)[0]).astype(np.float32)
    path = write(tmp_path / "m.gguf", plain, draw(plain), extra={"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(path)
    assert checkpoint.architecture.rope == llama3.rope
    assert "rope_freqs.weight" not in checkpoint.names()


def test_other_frequency_tensors_are_refused(tmp_path):
    arch = architecture()
    extra = {"rope_freqs.weight": np.linspace(1, 4, 8, dtype=np.float32)}
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight"):
        open_checkpoint(write(tmp_path / "m.gguf", arch, draw(arch), extra=extra))


def test_rope_scaling_keys(tmp_path):
    arch = architecture("qwen2")
    values = {
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 1024,
    }
    rope = open_checkpoint(write(tmp_path / "m.gguf", arch, draw(arch), values=values)).architecture.rope
    assert (rope.kind, rope.factor, rope.original_positions) == ("yarn", 4.0, 1024)
    assert rope.attention_factor == pytest.approx(1.1386294)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"factor": 4.0}, ("linear", 4.0)),
        ({"factor": 0.0}, ("linear", 1.0)),
        ({"type": "linear", "factor": 2.0}, ("linear", 2.0)),
        ({"type": "none", "factor": 4.0}, ("default", 1.0)),
        ({}, ("default", 1.0)),
    ],
)
def test_rope_scaling_is_linear_unless_its_type_says_otherwise(tmp_path, given, expected):
    """The defaults of llama.cpp."""
    arch = architecture()
    values = {f"llama.rope.scaling.{key}": value for key, value in given.items()}
    rope = open_checkpoint(write(tmp_path / "m.gguf", arch, draw(arch), values=values)).architecture.rope
    assert (rope.kind, rope.factor) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"llama.rope.scaling.type": "longrope"}, "'longrope' is not supported"),
        ({"llama.rope.scaling.factor": 0.5}, "llama.rope.scaling.factor is 0.5"),
        ({"llama.rope.scaling.factor": "4"}, "llama.rope.scaling.factor is '4'"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 0},
            "llama.rope.scaling.original_context_length is 0",
        ),
        ({"llama.rope.scaling.attn_factor": 2.0}, "rope scaling by attn_factor"),
        ({"llama.rope.scale_linear": 2.0}, "scale_linear"),
        ({"llama.expert_count": 8}, "llama.expert_count is 8"),
        ({"split.count": 2}, "split.count is 2"),
        ({"split.count": "a"}, "split.count is 'a'"),
        ({"llama.attention.key_length": 16.0}, "llama.attention.key_length is 16.0"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "llama.attention.layer_norm_rms_epsilon is 0.0"),
        ({"llama.attention.head_count_kv": 0}, "llama.attention.head_count_kv is 0"),
        ({"llama.rope.freq_base": 0.0}, "llama.rope.freq_base is 0.0"),
        ({"tokenizer.ggml.eos_token_id": "</s>"}, "tokenizer.ggml.eos_token_id is '</s>'"),
        ({"tokenizer.ggml.tokens": 40}, "tokenizer.ggml.tokens is 40"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8"),
        ({"llama.vocab_size": 50}, "50 tokens, but token_embd has 40 rows"),
    ],
)
def test_what_we_do_not_compute_is_refused_by_its_key(tmp_path, values, message):
    arch = architecture()
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(write(tmp_path / "m.gguf", arch, draw(arch), values=values))


def test_layers_that_a_file_only_claims_are_refused_before_they_are_named(tmp_path):
    arch = architecture()
    path = write(tmp_path / "m.gguf", arch, draw(arch), values={"llama.block_count": 2**31})
    with pytest.raises(UserError, match=r"2147483648 layers \(num_hidden_layers, block_count\), but only 20 tensors"):
        open_checkpoint(path)


def test_other_architectures_are_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"general\.architecture 'gpt2'"):
        open_checkpoint(tmp_path / "m.gguf")


def test_missing_and_unexpected_tensors_are_named(tmp_path):
    arch = architecture()
    tensors = draw(arch)
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    extra = {"blk.0.ffn_gate_inp.weight": np.ones((2, 2), np.float32)}
    path = write(tmp_path / "m.gguf", arch, tensors, extra=extra)
    with pytest.raises(
        UserError, match=r"missing tensor model.layers.1.mlp.up_proj.weight; unexpected tensor blk.0.ffn_gate_inp"
    ):
        open_checkpoint(path)
    tensors.pop(EMBEDDING)
    with pytest.raises(UserError, match=r"token_embd.weight is missing"):
        open_checkpoint(write(tmp_path / "n.gguf", arch, tensors))


@pytest.mark.parametrize("keep", [0, 3, 10, 24, 200, 1500, -1])
def test_a_file_cut_anywhere_is_refused(tmp_path, keep):
    arch = architecture()
    path = write(tmp_path / "m.gguf", arch, draw(arch))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"m.gguf: not a"):
        open_checkpoint(path)


def test_lengths_that_a_file_only_claims_are_refused(tmp_path):
    head = b"GGUF" + np.uint32(3).tobytes() + np.uint64([0, 1]).tobytes()
    key = np.uint64(1).tobytes() + b"k"
    (tmp_path / "m.gguf").write_bytes(head + key + np.uint32(8).tobytes() + np.uint64(2**60).tobytes() + b"x" * 64)
    with pytest.raises(UserError, match="past the end"):
        open_checkpoint(tmp_path / "m.gguf")


def test_the_fingerprint_sees_the_weights(tmp_path):
    arch = architecture()
    prints = [open_checkpoint(write(tmp_path / f"{s}.gguf", arch, draw(arch, s))).fingerprint for s in (0, 1)]
    assert prints[0] != prints[1]
    write(tmp_path / "again.gguf", arch, draw(arch, 0))
    assert open_checkpoint(tmp_path / "again.gguf").fingerprint == prints[0]


@pytest.mark.parity
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_transformers_reads_the_same_tensors(tmp_path, family, torch):
    from transformers import AutoModelForCausalLM

    arch = architecture(family)
    write(tmp_path / "m.gguf", arch, draw(arch), values={f"{family}.vocab_size": 40})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).state_dict()
    ours = open_checkpoint(tmp_path / "m.gguf")
    for name in ours.names():
        np.testing.assert_array_equal(ours.tensor(name), theirs[name].numpy(), err_msg=name)
