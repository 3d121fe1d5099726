"""Hugging Face folders: one file or shards, stored types, and what is wrong with a broken one."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.models.architecture import tensor_shapes
from jaxsearchrl.models.files import FolderCheckpoint, check_names, open_checkpoint
from jaxsearchrl.models.fingerprint import COMPARED_ROWS, same_rows, sample_pieces
from jaxsearchrl.models.mxfp4 import dequantise, quantise
from jaxsearchrl.models.tiny import write_tiny_checkpoint

QUERY = "model.layers.1.self_attn.q_proj.weight"
EXPERTS = "model.layers.1.mlp.experts.gate_up_proj"


@pytest.fixture
def folder(tmp_path):
    write_tiny_checkpoint(tmp_path / "tiny", "llama", vocab_size=31)
    return tmp_path / "tiny"


def rewrite(folder, change):
    """Loads the folder's tensors, lets `change` edit the dictionary, saves them."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_one_file_and_shards_hold_the_same(tmp_path):
    arch = write_tiny_checkpoint(tmp_path / "one", "qwen2", vocab_size=31, tied=False)
    write_tiny_checkpoint(tmp_path / "three", "qwen2", vocab_size=31, tied=False, shards=3)
    assert len(list((tmp_path / "three").glob("*.safetensors"))) == 3
    one, three = open_checkpoint(tmp_path / "one"), open_checkpoint(tmp_path / "three")
    assert one.architecture == three.architecture == arch
    assert one.names() == three.names() == set(tensor_shapes(arch))
    for name in one.names():
        np.testing.assert_array_equal(one.tensor(name), three.tensor(name))
        assert one.shape(name) == one.tensor(name).shape == tensor_shapes(arch)[name]
    assert one.fingerprint == three.fingerprint


def test_the_seed_decides_the_weights(tmp_path):
    prints = []
    for i, seed in enumerate([5, 5, 6]):
        write_tiny_checkpoint(tmp_path / str(i), "llama", vocab_size=31, seed=seed)
        prints.append(open_checkpoint(tmp_path / str(i)).fingerprint)
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_read_as_stored(folder, dtype):
    full = open_checkpoint(folder).tensor(QUERY)
    rewrite(folder, lambda tensors: tensors.update({n: t.astype(dtype) for n, t in tensors.items()}))
    half = open_checkpoint(folder).tensor(QUERY)
    assert half.dtype == dtype
    np.testing.assert_array_equal(half, full.astype(dtype))


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_the_fingerprint_sees_a_changed_tensor_and_a_changed_config(folder, name):
    before = open_checkpoint(folder).fingerprint
    rewrite(folder, lambda tensors: tensors[name][5:].__imul__(np.float32(1.01)))  # any part of a vector counts
    changed = open_checkpoint(folder).fingerprint
    configure(folder, rms_norm_eps=1e-6)
    assert len({before, changed, open_checkpoint(folder).fingerprint}) == 3


def test_the_fingerprint_ignores_who_wrote_the_config(folder):
    before = open_checkpoint(folder).fingerprint
    configure(folder, transformers_version="4.0", use_cache=False)
    assert open_checkpoint(folder).fingerprint == before


def test_stop_ids_come_from_both_configs(folder):
    configure(folder, eos_token_id=3)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 3]}))
    assert open_checkpoint(folder).architecture.eos_ids == (3, 4)


def test_a_tied_head_that_was_stored_is_dropped_when_equal_and_refused_when_not(folder):
    rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))
    assert "lm_head.weight" not in open_checkpoint(folder).names()
    rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    with pytest.raises(UserError, match=r"tie_word_embeddings is true, but lm_head.weight is not the embedding"):
        open_checkpoint(folder)


def test_a_tied_head_is_compared_in_every_row(folder):
    def change_one_row(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["lm_head.weight"][5] *= -1

    rewrite(folder, change_one_row)
    with pytest.raises(UserError, match=r"lm_head.weight is not the embedding"):
        open_checkpoint(folder)


def test_matrices_are_compared_to_the_last_row():
    rows = np.arange(2 * COMPARED_ROWS + 3)[:, None]
    changed = rows.copy()
    changed[-1] += 1
    assert same_rows(rows.__getitem__, rows.copy().__getitem__, len(rows))
    assert not same_rows(rows.__getitem__, changed.__getitem__, len(rows))


def test_a_tied_model_without_its_embedding_names_it(folder):
    rewrite(folder, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
    with pytest.raises(UserError, match=r"missing tensor model.embed_tokens.weight; unexpected tensor lm_head.weight"):
        open_checkpoint(folder)


def test_layers_that_a_config_only_claims_are_refused_before_they_are_named(folder):
    configure(folder, num_hidden_layers=2**31)
    with pytest.raises(UserError, match=r"2147483648 layers .*, but only 20 tensors"):
        open_checkpoint(folder)


def test_old_rotary_buffers_are_no_weights(folder):
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}))
    assert not [n for n in open_checkpoint(folder).names() if "rotary" in n]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(QUERY), f"missing tensor {QUERY}"),
        (lambda t: t.update({"visual.weight": np.ones(2, np.float32)}), "unexpected tensor visual.weight"),
        (
            lambda t: t.update({QUERY: t[QUERY][:-1].copy()}),
            rf"misshapen tensor {QUERY} is \(47, 48\), expected \(48, 48\)",
        ),
        (lambda t: t.update({QUERY: t[QUERY].astype(np.int8)}), f"tensor {QUERY} is stored as I8"),
        (lambda t: [t.pop(n) for n in list(t) if "layers" in n], "and 13 more"),
    ],
)
def test_wrong_tensors_are_named(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(UserError, match=message):
        open_checkpoint(folder)


def test_check_names_passes_on_what_fits(folder):
    checkpoint = open_checkpoint(folder)
    check_names(checkpoint, tensor_shapes(checkpoint.architecture), "here")


def test_paths_that_are_no_checkpoint(tmp_path, folder):
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for path, message in (
        (tmp_path / "absent", "no such file or folder"),
        (tmp_path / "notes.txt", "neither a .gguf file nor a folder"),
        (tmp_path, "config.json: no such file"),
        (tmp_path / "adapter", "LoRA adapter; pass the folder of its base"),
    ):
        with pytest.raises(UserError, match=message):
            open_checkpoint(path)


def test_a_folder_with_pickled_weights_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no model.safetensors and no model.safetensors.index.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\n", b"", None])
def test_a_file_cut_short_is_named(folder, content):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(UserError, match=r"model.safetensors: not a whole safetensors file"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_config_is_named(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config.json"):
        open_checkpoint(folder)


def test_an_unsupported_config_names_its_key_and_file(folder):
    configure(folder, hidden_act="relu")
    with pytest.raises(ConfigError, match=r"tiny.config.json: hidden_act 'relu'"):
        open_checkpoint(folder)


def test_a_missing_shard_and_an_index_that_lies(tmp_path):
    write_tiny_checkpoint(tmp_path, "llama", vocab_size=31, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    original = json.loads(index.read_text())
    moved = {QUERY: "model-00001-of-00002.safetensors", "model.norm.weight": "model-00001-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": original["weight_map"] | moved}))
    with pytest.raises(UserError, match=r"named by the index but not in model-00001|not named by the index but in"):
        open_checkpoint(tmp_path)
    for file in (None, 3, ["a"]):
        index.write_text(json.dumps({"weight_map": original["weight_map"] | {QUERY: file}}))
        with pytest.raises(UserError, match=rf"index.json: weight_map names no file for {QUERY}"):
            open_checkpoint(tmp_path)
    index.write_text(json.dumps({}))
    with pytest.raises(UserError, match="weight_map is missing"):
        open_checkpoint(tmp_path)
    index.write_text(json.dumps(original))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00002.safetensors: no such file"):
        open_checkpoint(tmp_path)


# --------------------------------------------------------------------------------------------------------------- MXFP4


@pytest.fixture
def packed(folder):
    """The folder with a tensor of 3 experts, 96 inputs, 10 outputs; it is no weight of its architecture."""
    blocks, scales = quantise(np.random.default_rng(0).standard_normal((3, 10, 96)))
    rewrite(folder, lambda t: t.update({f"{EXPERTS}_blocks": blocks, f"{EXPERTS}_scales": scales}))
    return folder


def test_blocks_and_scales_are_one_tensor(packed):
    checkpoint = FolderCheckpoint(packed)
    assert EXPERTS in checkpoint.names()
    assert not [name for name in checkpoint.names() if name.endswith(("_blocks", "_scales"))]
    assert checkpoint.shape(EXPERTS) == (3, 96, 10)
    stored = load_file(packed / "model.safetensors")
    blocks, scales = stored[f"{EXPERTS}_blocks"], stored[f"{EXPERTS}_scales"]
    tensor = checkpoint.tensor(EXPERTS)
    assert tensor.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(tensor, dequantise(blocks, scales, ml_dtypes.bfloat16).swapaxes(1, 2))
    for ours, theirs in zip(checkpoint.packed(EXPERTS), (blocks, scales), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(checkpoint.packed(EXPERTS, (slice(1, 3), slice(4))), (blocks, scales), strict=True):
        np.testing.assert_array_equal(ours, theirs[1:3, :4])
    assert checkpoint.packed(QUERY) is None


def spans(size):
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda ends: slice(*sorted(ends)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([EXPERTS, QUERY]), st.data())
def test_a_part_of_a_tensor_is_that_part_of_the_whole(packed, name, data):
    checkpoint = FolderCheckpoint(packed)
    shape = checkpoint.shape(name)
    index = data.draw(st.tuples(*map(spans, shape)))[: data.draw(st.integers(0, len(shape)))]
    np.testing.assert_array_equal(checkpoint.tensor(name, index), checkpoint.tensor(name)[index])


def test_the_fingerprint_sees_packed_tensors(packed):
    prints = [FolderCheckpoint(packed).fingerprint, FolderCheckpoint(packed).fingerprint]
    for part in ("blocks", "scales"):
        rewrite(packed, lambda t, part=part: t[f"{EXPERTS}_{part}"][2, 9].__iadd__(np.uint8(1)))
        prints.append(FolderCheckpoint(packed).fingerprint)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_the_sampled_rows_of_a_tensor_go_through_all_its_axes():
    one = lambda *place: tuple(slice(i, i + 1) for i in place)  # noqa: E731
    assert sample_pieces((7,)) == [()]
    assert sample_pieces((3, 5)) == [one(0), one(1), one(2)]
    assert sample_pieces((10, 7, 5)) == [one(0, 0), one(3, 2), one(6, 4), one(9, 6)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{EXPERTS}_scales"), f"tensor {EXPERTS}_scales is missing"),
        (lambda t: t.pop(f"{EXPERTS}_blocks"), f"tensor {EXPERTS}_blocks is missing"),
        (
            lambda t: t.update({f"{EXPERTS}_scales": np.ones((3, 10, 3), np.float32)}),
            f"tensor {EXPERTS}_scales is missing or not of bytes",
        ),
        (
            lambda t: t.update({f"{EXPERTS}_scales": np.ones((3, 10, 2), np.uint8)}),
            rf"tensor {EXPERTS} .* blocks \[3, 10, 3, 16\] and scales \[3, 10, 2\] are not",
        ),
        (
            lambda t: t.update({f"{EXPERTS}_blocks": np.ones((3, 10, 3, 8), np.uint8)}),
            rf"tensor {EXPERTS} .* blocks \[3, 10, 3, 8\]",
        ),
        (lambda t: t.update({EXPERTS: np.ones((3, 96, 10), np.float32)}), f"tensor {EXPERTS} is stored both"),
        (lambda t: t.update({"model.mask": np.ones(3, np.uint8)}), r"tensor model.mask is stored as U8"),
    ],
)
def test_packed_tensors_that_do_not_fit_are_named(packed, change, message):
    rewrite(packed, change)
    with pytest.raises(UserError, match=message):
        FolderCheckpoint(packed)


def test_packed_tensors_of_no_weight_are_refused(packed):
    with pytest.raises(UserError, match=f"unexpected tensor {EXPERTS}"):
        open_checkpoint(packed)
