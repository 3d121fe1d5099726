"""A merged checkpoint: transformers computes from it what we compute with base and adapter."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models import merged
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.models.files import FolderCheckpoint, open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.merged import write_merged
from jaxsearchrl.models.mxfp4 import dequantise, quantise
from jaxsearchrl.models.peft_adapter import adapter_of
from jaxsearchrl.models.tiny import write_tiny_checkpoint


def draw_lora(model):
    rng = np.random.default_rng(11)
    return {n: rng.standard_normal(s).astype(np.float32) * 0.2 for n, s in sorted(model.lora_shapes.items())}


def merge(base: Path, folder: Path, config: LoraConfig):
    checkpoint = open_checkpoint(base)
    lora = draw_lora(build_model(checkpoint.architecture, config))
    folder.mkdir()
    write_merged(folder, base, checkpoint, adapter_of(lora), config.alpha / config.rank)
    return lora


@pytest.mark.parity
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "qwen3_5_moe_text", "gpt_oss"])
def test_transformers_computes_from_it_what_we_compute_with_the_adapter(family, tmp_path, torch, monkeypatch):
    from transformers import AutoModelForCausalLM

    from tests.models.test_parity import logits_of

    monkeypatch.setattr(merged, "SHARD_BYTES", 40_000)
    write_tiny_checkpoint(tmp_path / "base", family, vocab_size=61, tied=family == "llama")
    own = {"qwen3_5_moe_text": ("gate_proj", "in_proj_qkv", "gate_up_proj"), "gpt_oss": ("gate_up_proj",)}
    modules = ("q_proj", "down_proj", *own.get(family, ("gate_proj", "v_proj")))
    config = LoraConfig(rank=3, alpha=5.0, modules=modules)
    lora = merge(tmp_path / "base", tmp_path / "merged", config)
    assert len(list((tmp_path / "merged").glob("model-*.safetensors"))) > 3
    checkpoint = open_checkpoint(tmp_path / "base")
    model = build_model(checkpoint.architecture, config)
    tokens = np.random.default_rng(7).integers(0, 61, (2, 20))
    ours = logits_of(model, load_base(model, checkpoint), lora, tokens)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    with torch.no_grad():
        np.testing.assert_allclose(ours, theirs(torch.from_numpy(tokens)).logits.numpy(), atol=1e-4)


@pytest.mark.parametrize("turned", [True, False], ids=["out, in", "in, out"])
def test_an_expert_gets_its_own_change_whichever_way_its_matrix_lies(turned):
    matrix = np.zeros((2, 3) if turned else (3, 2), np.float32)
    pair = np.asarray([[1.0], [2.0], [3.0]]), np.asarray([[10.0, 20.0]])
    change = np.asarray([[5.0, 10.0], [10.0, 20.0], [15.0, 30.0]])
    np.testing.assert_array_equal(merged.plus(matrix, pair, 0.5, turned=turned), change.T if turned else change)


def test_dtypes_and_small_files_stay(tmp_path):
    base = tmp_path / "base"
    write_tiny_checkpoint(base, "qwen2", vocab_size=61)
    tensors = {n: t.astype(ml_dtypes.bfloat16) for n, t in load_file(base / "model.safetensors").items()}
    save_file(tensors, base / "model.safetensors")
    (base / "tokenizer.json").write_text("{}")
    (base / "pytorch_model.bin").write_bytes(b"old")
    (base / "config.json").write_text(json.dumps(json.loads((base / "config.json").read_text()) | {"of_theirs": 1}))
    merge(base, tmp_path / "merged", LoraConfig(rank=2, modules=("q_proj",)))
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert names == {"config.json", "tokenizer.json", "model-00001.safetensors", "model.safetensors.index.json"}
    assert json.loads((tmp_path / "merged/config.json").read_text())["of_theirs"] == 1
    after = load_file(tmp_path / "merged/model-00001.safetensors")
    changed = {name for name, value in tensors.items() if not np.array_equal(value, after[name])}
    assert {value.dtype for value in after.values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert changed == {name for name in tensors if "q_proj.weight" in name}


def test_what_was_packed_is_written_as_floats_and_the_config_says_so(tmp_path):
    base = tmp_path / "base"
    write_tiny_checkpoint(base, "llama", vocab_size=61)
    blocks, scales = quantise(np.random.default_rng(0).standard_normal((2, 3, 64)))
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = load_file(base / "model.safetensors")
    save_file(tensors | {f"{name}_blocks": blocks, f"{name}_scales": scales}, base / "model.safetensors")
    checkpoint = FolderCheckpoint(base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    (tmp_path / "merged").mkdir()
    write_merged(tmp_path / "merged", base, checkpoint, {}, 1.0)
    after = load_file(tmp_path / "merged/model-00001.safetensors")
    assert after.keys() == tensors.keys() | {name}
    np.testing.assert_array_equal(after[name], dequantise(blocks, scales, ml_dtypes.bfloat16).swapaxes(1, 2))
    assert json.loads((tmp_path / "merged/config.json").read_text()) == config
