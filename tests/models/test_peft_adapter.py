"""Adapters in PEFT's format: the exact file, and what is refused. PEFT itself reads and writes them in test_parity."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.models.architecture import Experts, linear_shapes
from jaxsearchrl.models.peft_adapter import read_adapter, write_adapter
from jaxsearchrl.models.tiny import tiny_architecture

ARCH = tiny_architecture("llama", vocab_size=31)
CONFIG = LoraConfig(rank=3, alpha=6.0, modules=("q_proj", "down_proj"))
DOWN_A = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"


def draw(arch=ARCH, config=CONFIG):
    rng = np.random.default_rng(0)
    return {
        f"layers.{i}.{linear}": (
            rng.standard_normal((inputs, config.rank), dtype=np.float32),
            rng.standard_normal((config.rank, outputs), dtype=np.float32),
        )
        for i in range(arch.layers)
        for linear, (outputs, inputs) in linear_shapes(arch, i).items()
        if linear.split(".")[-1] in config.modules
    }


@pytest.fixture
def folder(tmp_path):
    write_adapter(tmp_path / "adapter", ARCH, draw(), CONFIG, "some/base")
    return tmp_path / "adapter"


def rewrite(folder, change):
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def configure(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_file_is_pefts_with_lora_tensors_only(folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 2  # A and B, two linears, two layers
    assert tensors[DOWN_A].shape == (3, 80)
    assert tensors[DOWN_A.replace("lora_A", "lora_B")].shape == (48, 3)
    assert {t.dtype for t in tensors.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(tensors[DOWN_A], draw()["layers.1.mlp.down_proj"][0].T)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 3, 6)
    assert config["base_model_name_or_path"] == "some/base"
    assert config["target_modules"] == ["q_proj", "down_proj"]
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_a_stack_of_experts_is_one_module_wrapped_once_for_each_parameter(tmp_path):
    arch = tiny_architecture("qwen3_5_moe_text", vocab_size=31, experts=Experts(2, 1, 24, True, True, 20))
    config = LoraConfig(rank=3, alpha=6.0, modules=("in_proj_a", "gate_up_proj", "down_proj"))
    adapter = {
        linear.replace("*", str(expert)): pair
        for linear, pair in draw(arch, config).items()
        for expert in range(2 if "*" in linear else 1)
    }
    adapter["layers.1.mlp.experts.1.down_proj"] = (np.eye(24, 3) * 5, np.arange(3 * 48).reshape(3, 48))
    write_adapter(tmp_path, arch, adapter, config, "base")
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    experts = "base_model.model.model.layers.1.mlp.experts"
    assert tensors[f"{experts}.base_layer.lora_A.weight"].shape == (2 * 3, 48)  # gate_up_proj, the inner one
    assert tensors[f"{experts}.base_layer.lora_B.weight"].shape == (48, 3 * 2)
    down_a, down_b = (tensors[f"{experts}.lora_{part}.weight"] for part in "AB")
    np.testing.assert_array_equal(down_a[3:], np.eye(3, 24) * 5)  # expert by expert
    np.testing.assert_array_equal(down_b[:, 1::2], np.arange(3 * 48).reshape(3, 48).T)  # experts alternate
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    assert described["target_modules"] == ["in_proj_a", "down_proj"]  # down_proj of the shared expert
    assert described["target_parameters"] == ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
    back, read_config = read_adapter(tmp_path, arch)
    assert set(read_config.modules) == set(config.modules)
    assert back.keys() == adapter.keys()
    for linear, pair in adapter.items():
        for read, written in zip(back[linear], pair, strict=True):
            np.testing.assert_array_equal(read, written)
    configure(tmp_path, target_parameters=["mlp.gate.weight"])
    with pytest.raises(ConfigError, match=r"target_parameters names 'mlp.gate.weight', but only mlp.experts.down_proj"):
        read_adapter(tmp_path, arch)
    configure(tmp_path, target_parameters=["mlp.experts.down_proj"])
    with pytest.raises(UserError, match=r"4 tensors are not LoRA on the base's linears, first .*base_layer.lora_A"):
        read_adapter(tmp_path, arch)
    adapter.pop("layers.0.mlp.experts.1.gate_up_proj")
    with pytest.raises(UserError, match=r"2 of 14 LoRA tensors are missing, first .*layers.0.mlp.experts.base_layer"):
        write_adapter(tmp_path / "less", arch, adapter, config, "base")


def test_reading_gives_back_what_was_written(folder):
    adapter, config = read_adapter(folder, ARCH)
    assert replace(config, modules=()) == replace(CONFIG, modules=())
    assert set(config.modules) == set(CONFIG.modules)
    assert adapter.keys() == draw().keys()
    for linear, pair in draw().items():
        for read, written in zip(adapter[linear], pair, strict=True):
            np.testing.assert_array_equal(read, written)


def test_bfloat16_adapters_become_float32(folder):
    rewrite(folder, lambda t: t.update({n: v.astype(ml_dtypes.bfloat16) for n, v in t.items()}))
    assert {m.dtype for pair in read_adapter(folder, ARCH)[0].values() for m in pair} == {np.dtype(np.float32)}


def test_a_pattern_as_target_is_read_from_the_tensors(folder):
    configure(folder, target_modules=r"model\..*\.(q_proj|down_proj)")
    assert set(read_adapter(folder, ARCH)[1].modules) == {"q_proj", "down_proj"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(DOWN_A), f"1 of 8 LoRA tensors are missing, first {DOWN_A}"),
        (lambda t: [t.pop(n) for n in list(t) if "layers.1." in n], "4 of 8 LoRA tensors are missing"),
        (lambda t: t.update({"base_model.model.lm_head.weight": np.ones(2)}), "first base_model.model.lm_head.weight"),
        (lambda t: t.update({DOWN_A: np.ones((4, 80))}), rf"{DOWN_A} is \(4, 80\), but .* \(3, 80\)"),
        (lambda t: t.update({DOWN_A: np.ones((3, 81))}), rf"{DOWN_A} is \(3, 81\)"),
    ],
)
def test_wrong_tensors_are_named(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(UserError, match=message):
        read_adapter(folder, ARCH)


def test_an_adapter_of_another_base_is_refused(folder):
    with pytest.raises(UserError, match=r"4 of 12 LoRA tensors are missing"):
        read_adapter(folder, replace(ARCH, layers=3))
    with pytest.raises(UserError, match=r"4 tensors are not LoRA"):
        read_adapter(folder, replace(ARCH, layers=1))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"bias": "all"}, "bias"),
        ({"use_dora": True}, "use_dora"),
        ({"use_rslora": True}, "use_rslora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"layers_to_transform": [0]}, "layers_to_transform"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters names .* the base has none"),
        ({"r": None}, "r is None"),
        ({"r": 2.5}, "r is 2.5"),
        ({"lora_alpha": "32"}, "lora_alpha"),
    ],
)
def test_options_that_change_the_result_are_refused_by_name(folder, changes, named):
    configure(folder, **changes)
    with pytest.raises(ConfigError, match=rf"adapter_config.json: {named}"):
        read_adapter(folder, ARCH)


@pytest.mark.parametrize("targets", [["q_proj", "down_proj", "lm_head"], ["q_proj", "w1"]])
def test_an_unknown_target_is_named(folder, targets):
    configure(folder, target_modules=targets)
    with pytest.raises(UserError, match=f"'{targets[-1]}' is not a linear that can be adapted"):
        read_adapter(folder, ARCH)


def test_missing_and_broken_files_are_named(folder, tmp_path):
    with pytest.raises(UserError, match=r"adapter_config.json: no such file"):
        read_adapter(tmp_path, ARCH)
    (folder / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"adapter_model.safetensors: not a whole safetensors file"):
        read_adapter(folder, ARCH)
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"adapter_config.json: expected a JSON object"):
        read_adapter(folder, ARCH)


def test_an_incomplete_adapter_is_not_written(tmp_path):
    adapter = draw()
    adapter.pop("layers.0.self_attn.q_proj")
    with pytest.raises(UserError, match="2 of 8 LoRA tensors are missing"):
        write_adapter(tmp_path, ARCH, adapter, CONFIG, "base")
    with pytest.raises(UserError, match=r"is \(3, 48\)|is \(3, 80\)|is \(48, 3\)"):
        write_adapter(tmp_path, ARCH, draw(), replace(CONFIG, rank=4), "base")
    assert list(tmp_path.iterdir()) == []
