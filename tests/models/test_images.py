"""Checkpoints of models that see, as transformers writes them: we run their text part, and a merged one stays whole."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.models.architecture import tensor_shapes
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.merged import write_merged
from jaxsearchrl.models.peft_adapter import adapter_of, write_adapter
from tests.models.test_parity import logits_of, random_lora, reference, reference_logits

TEXT = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "eos_token_id": 3,
    "pad_token_id": None,
    "bos_token_id": None,
}
SIZES = {
    "qwen3_5": {"intermediate_size": 40},
    "qwen3_5_moe": {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 10,
    },
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "out_hidden_size": 24,
    "num_position_embeddings": 16,
}
PLACES = {"image_token_id": 55, "video_token_id": 56, "vision_start_token_id": 57, "vision_end_token_id": 58}
MORE = {"mtp.fc.weight": np.ones((24, 48), np.float32)}  # the hub's have it; transformers does not write it


@pytest.fixture(params=["qwen3_5", "qwen3_5_moe"])
def folder(request, tmp_path, torch):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        request.param, text_config=TEXT | SIZES[request.param], vision_config=VISION, **PLACES
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.5 if "embed" in name else parameter.shape[-1] ** -0.5)
    # As the hub has them, with one tensor for all experts; else transformers writes one for each.
    model.save_pretrained(tmp_path / "base", save_original_format=False)
    stored = load_file(tmp_path / "base/model.safetensors")
    save_file(stored | MORE, tmp_path / "base/model.safetensors", metadata={"format": "pt"})
    return tmp_path / "base"


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parity
def test_the_text_part_is_read_adapted_and_merged_as_transformers_does(folder, tmp_path, torch):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.names() == set(tensor_shapes(checkpoint.architecture))
    assert checkpoint.architecture.eos_ids == (3,)
    model = build_model(checkpoint.architecture, LoraConfig(rank=3, alpha=5.0))
    base, lora = load_base(model, checkpoint), random_lora(model)
    plain = reference_logits(reference(folder, torch), torch)
    assert plain.std() > 0.5
    np.testing.assert_allclose(logits_of(model, base, {n: 0 * v for n, v in lora.items()}), plain, atol=1e-4)

    adapter = adapter_of(lora)
    write_adapter(tmp_path / "adapter", model.arch, adapter, model.lora, "base")
    theirs = peft.PeftModel.from_pretrained(reference(folder, torch), tmp_path / "adapter").eval()
    ours = logits_of(model, base, lora)
    assert np.abs(ours - plain).max() > 0.1
    np.testing.assert_allclose(ours, reference_logits(theirs, torch), atol=1e-4)

    merged = tmp_path / "merged"
    merged.mkdir()
    write_merged(merged, folder, checkpoint, adapter, 5.0 / 3)
    np.testing.assert_allclose(ours, reference_logits(reference(merged, torch), torch), atol=1e-4)
    before, after = (load_file(path) for path in (folder / "model.safetensors", merged / "model-00001.safetensors"))
    tied = {"lm_head.weight"} if checkpoint.architecture.tied else set()
    assert after.keys() == before.keys() - tied
    for name in after:
        if name.startswith(("model.visual.", "mtp.")):
            np.testing.assert_array_equal(after[name], before[name])
    whole, info = transformers.AutoModelForImageTextToText.from_pretrained(merged, output_loading_info=True)
    assert type(whole).__name__.endswith("ForConditionalGeneration")
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    np.testing.assert_allclose(ours, reference_logits(whole.eval(), torch), atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(other=np.ones(2, np.float32)), "tensor other is in no known part"),
        (
            lambda t: t.update({"model.norm.weight": np.ones(24, np.float32)}),
            "tensor model.norm.weight is in no",
        ),
        (lambda t: t.update({"model.language_model.x": np.ones(2, np.float32)}), "unexpected tensor model.x"),
        (lambda t: t.pop("model.language_model.norm.weight"), "missing tensor model.norm.weight"),
    ],
)
def test_what_belongs_to_no_part_is_refused(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(UserError, match=message):
        open_checkpoint(folder)


def test_what_sees_counts_only_in_a_model_with_images(folder):
    """Neither in the fingerprint, nor where a text model has it by mistake."""
    before = open_checkpoint(folder).fingerprint
    rewrite(folder, lambda tensors: tensors["model.visual.pos_embed.weight"].__imul__(2))
    assert open_checkpoint(folder).fingerprint == before
    config = json.loads((folder / "config.json").read_text())
    outer = {"tie_word_embeddings": config["tie_word_embeddings"]}
    (folder / "config.json").write_text(json.dumps(config["text_config"] | outer))

    def call_as_a_text_model_does(tensors):
        for name in [name for name in tensors if ".language_model." in name]:
            tensors[name.replace("language_model.", "")] = tensors.pop(name)

    rewrite(folder, call_as_a_text_model_does)
    with pytest.raises(UserError, match=r"fit the architecture: unexpected tensor model.visual.* and 17 more"):
        open_checkpoint(folder)


def test_stop_ids_are_those_of_the_text_part_and_of_generation(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 3]}))
    assert open_checkpoint(folder).architecture.eos_ids == (3, 4)
