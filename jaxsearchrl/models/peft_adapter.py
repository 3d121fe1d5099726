"""LoRA adapters in PEFT's format: adapter_model.safetensors and adapter_config.json.

Here an adapter is `{"layers.0.self_attn.q_proj": (A [in, R], B [R, out])}`; PEFT stores both transposed, so its files
hold lora_A [R, in] and lora_B [out, R], float32. Every chosen linear of every layer must be there, and nothing else.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  teaches numpy the bfloat16 that safetensors returns
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.models.architecture import Architecture, linear_shapes

Adapter = dict[str, tuple[np.ndarray, np.ndarray]]
"""Linear ("layers.0.mlp.up_proj") -> (A [in, R], B [R, out]), float32: y = x W + (alpha / R) (x A) B."""

PREFIX = "base_model.model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
}
"""The options that change what an adapter computes, at the only value that we compute."""


def write_adapter(
    folder: str | Path,
    arch: Architecture,
    adapter: Mapping[str, tuple[np.ndarray, np.ndarray]],
    config: LoraConfig,
    base_name: str,
) -> None:
    """Writes the adapter so that `PeftModel.from_pretrained(base, folder)` loads it.

    base_name: the base's path or hub id. The config is written last, so that a folder that has one is whole. Raises
    UserError when a linear is missing, unexpected or misshapen.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for linear, (a, b) in adapter.items():
        tensors[f"{PREFIX}{linear}.lora_A.weight"] = np.ascontiguousarray(np.asarray(a, np.float32).T)
        tensors[f"{PREFIX}{linear}.lora_B.weight"] = np.ascontiguousarray(np.asarray(b, np.float32).T)
    _check({name: t.shape for name, t in tensors.items()}, _expected(arch, config.modules, config.rank), str(folder))
    (folder / CONFIG).unlink(missing_ok=True)
    save_file(tensors, folder / f"{WEIGHTS}.part", metadata={"format": "pt"})
    os.replace(folder / f"{WEIGHTS}.part", folder / WEIGHTS)
    alpha = int(config.alpha) if float(config.alpha).is_integer() else config.alpha
    described = PLAIN | {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": config.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": list(config.modules),
        "init_lora_weights": True,
        "inference_mode": True,
    }
    (folder / f"{CONFIG}.part").write_text(json.dumps(described, indent=2, sort_keys=True), encoding="utf-8")
    os.replace(folder / f"{CONFIG}.part", folder / CONFIG)


def read_adapter(folder: str | Path, arch: Architecture) -> tuple[Adapter, LoraConfig]:
    """Reads an adapter that PEFT or `write_adapter` wrote, for a base of architecture `arch`.

    Raises UserError when a file or tensor is missing, unexpected or misshapen, and ConfigError naming an option that
    is not supported.
    """
    folder = Path(folder)
    described = _read_config(folder / CONFIG)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder / WEIGHTS}: not a whole safetensors file ({error})") from error
    targets = described.get("target_modules")
    # A regular expression or "all-linear" says which modules only together with a model: the tensors say it directly.
    stored = targets if isinstance(targets, list) else [name.split(".lora_")[0] for name in tensors]
    endings = {target.rsplit(".", 1)[-1] for target in stored}
    modules = tuple(m for m in (linear.split(".")[-1] for linear in linear_shapes(arch)) if m in endings)
    config = LoraConfig(rank=described["r"], alpha=float(described["lora_alpha"]), modules=modules)
    _check({n: t.shape for n, t in tensors.items()}, _expected(arch, modules, config.rank), str(folder / WEIGHTS))
    adapter = {}
    for linear in _linears(arch, modules):
        a, b = (np.asarray(tensors[f"{PREFIX}{linear}.lora_{which}.weight"], np.float32).T for which in "AB")
        adapter[linear] = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return adapter, config


def _read_config(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; pass the folder of one adapter") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from error
    for key, plain in PLAIN.items():
        value = described.get(key, plain)
        if value != plain and value:  # PEFT writes an unused option as null, false or empty
            raise ConfigError(f"{path}: {key} is {value!r}, but only {plain!r} is supported")
    for key in ("r", "lora_alpha"):
        value = described.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{path}: {key} is {value!r}, but must be a number above 0")
    return described


def _linears(arch: Architecture, modules: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """The adapted linears: "layers.0.self_attn.q_proj" -> (out, in)."""
    shapes = {linear: shape for linear, shape in linear_shapes(arch).items() if linear.split(".")[-1] in modules}
    return {f"layers.{i}.{linear}": shape for i in range(arch.layers) for linear, shape in shapes.items()}


def _expected(arch: Architecture, modules: tuple[str, ...], rank: int) -> dict[str, tuple[int, int]]:
    expected = {}
    for linear, (outputs, inputs) in _linears(arch, modules).items():
        expected[f"{PREFIX}{linear}.lora_A.weight"] = (rank, inputs)
        expected[f"{PREFIX}{linear}.lora_B.weight"] = (outputs, rank)
    return expected


def _check(found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Names the first tensor that is missing, unexpected, or misshapen (of another rank or another base)."""
    if missing := sorted(expected.keys() - found.keys()):
        raise UserError(f"{where}: {len(missing)} of {len(expected)} LoRA tensors are missing, first {missing[0]}")
    if extra := sorted(found.keys() - expected.keys()):
        raise UserError(
            f"{where}: {len(extra)} unexpected tensors, first {extra[0]}; only LoRA on the base's linears is read"
        )
    for name, shape in sorted(expected.items()):
        if tuple(found[name]) != shape:
            raise UserError(f"{where}: {name} is {tuple(found[name])}, but the rank and the base ask for {shape}")
    if not expected:
        raise UserError(f"{where}: no linear of the base is adapted")
