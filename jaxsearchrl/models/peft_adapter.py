"""LoRA adapters in PEFT's format: adapter_model.safetensors and adapter_config.json.

Here an adapter is `{"layers.0.self_attn.q_proj": (A [in, R], B [R, out])}`; PEFT stores both transposed, so its files
hold lora_A [R, in] and lora_B [out, R], float32. Every chosen linear of every layer must be there, and nothing else.

Matrices of experts that a model has as one parameter [E, ..., ...] are one module's `target_parameters` in PEFT
(`ParamWrapper` in peft/tuners/lora/layer.py), with lora_A [E R, in] and lora_B [out, R E]. That in is the side that is
multiplied holds whichever way the parameter lies: transformers 5 tells PEFT (`is_transposed`).
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  teaches numpy the bfloat16 that safetensors returns
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.models.architecture import Architecture, adaptable, linear_shapes
from jaxsearchrl.models.config_file import read_json

Adapter = dict[str, tuple[np.ndarray, np.ndarray]]
"""Linear ("layers.0.mlp.up_proj") -> (A [in, R], B [R, out]), float32: y = x W + (alpha / R) (x A) B."""

PREFIX = "base_model.model.model."
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)")
_WRAPPED = re.compile(r".*\.experts(\.base_layer)*")
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
UNSUPPORTED = (
    "fan_in_fan_out",
    "use_dora",
    "use_rslora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layer_replication",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
"""Options of PEFT that change what an adapter computes; one that is unused is absent, null, false or empty."""

BASE_KEPT = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the base's own weights as they were; pissa and others do not."""


def adapter_of(lora: Mapping[str, Any]) -> Adapter:
    """The adapter that lies in the decoder's flat dict; what experts have as one array is one pair for each of them."""
    adapter = {}
    for name in sorted(name.removesuffix(".lora_a") for name in lora if name.endswith(".lora_a")):
        a, b = np.asarray(lora[f"{name}.lora_a"]), np.asarray(lora[f"{name}.lora_b"])
        if a.ndim == 2:
            adapter[name] = a, b
        else:
            beginning, _, linear = name.rpartition(".")
            adapter |= {f"{beginning}.{expert}.{linear}": pair for expert, pair in enumerate(zip(a, b, strict=True))}
    return adapter


def lora_of(adapter: Adapter) -> dict[str, np.ndarray]:
    """The decoder's flat dict of an adapter; the reverse of `adapter_of`."""
    lora: dict[str, Any] = {}
    stacks: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    for name, pair in adapter.items():
        if match := _EXPERT.fullmatch(name):
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = pair
        else:
            lora |= zip((f"{name}.lora_a", f"{name}.lora_b"), pair, strict=True)
    for name, pairs in stacks.items():
        for part, arrays in zip("ab", zip(*(pairs[expert] for expert in sorted(pairs)), strict=True), strict=True):
            lora[f"{name}.lora_{part}"] = np.stack(arrays)
    return lora


def to_peft(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A [E, in, R] and B [E, R, out] as PEFT's file has them: [E R, in], [out, R E]. For a linear alone E is 1."""
    return a.swapaxes(1, 2).reshape(-1, a.shape[1]), b.transpose(2, 1, 0).reshape(b.shape[2], -1)


def from_peft(a: np.ndarray, b: np.ndarray, experts: int) -> tuple[np.ndarray, np.ndarray]:
    """The reverse of `to_peft`."""
    return a.reshape(experts, -1, a.shape[1]).swapaxes(1, 2), b.reshape(len(b), -1, experts).transpose(2, 1, 0)


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
    places = _places(arch, config)
    if strange := sorted(adapter.keys() - {linear for place in places for linear in place.linears}):
        raise UserError(f"{folder}: {strange[0]} is not among the linears that the configuration adapts")
    tensors = {}
    for place in places:
        pairs = [adapter[linear] for linear in place.linears if linear in adapter]
        if len(pairs) == len(place.linears):
            stacked = (np.stack([np.asarray(pair[part], np.float32) for pair in pairs]) for part in range(2))
            for name, tensor in zip(place.tensors, to_peft(*stacked), strict=True):
                tensors[name] = np.ascontiguousarray(tensor)
    _check(tensors, places, arch, config, str(folder))
    (folder / CONFIG).unlink(missing_ok=True)
    save_file(tensors, folder / f"{WEIGHTS}.part", metadata={"format": "pt"})
    os.replace(folder / f"{WEIGHTS}.part", folder / WEIGHTS)
    alpha = int(config.alpha) if float(config.alpha).is_integer() else config.alpha
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": config.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        **_targets(arch, config),
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
    targets, parameters = described.get("target_modules"), described.get("target_parameters") or []
    stacks = {stack.replace(".*", "") for stack in _stacks(arch)}
    if strange := [name for name in parameters if not any(f".{name}".endswith(f".{stack}") for stack in stacks)]:
        known = f"only {', '.join(sorted(stacks))} can be" if stacks else "the base has none that can be"
        raise ConfigError(f"{folder / CONFIG}: target_parameters names {strange[0]!r}, but {known}")
    if not isinstance(targets, list):
        # A regular expression or "all-linear" says which modules only together with a model: the tensors say it.
        targets = [name.split(".lora_")[0] for name in tensors]
        targets = [name for name in targets if not _WRAPPED.fullmatch(name)]
    modules = tuple(sorted({target.rsplit(".", 1)[-1] for target in (*targets, *parameters)}))
    config = LoraConfig(rank=described["r"], alpha=float(described["lora_alpha"]), modules=modules)
    places = _places(arch, config)
    _check(tensors, places, arch, config, str(folder / WEIGHTS))
    adapter = {}
    for place in places:
        a, b = (np.asarray(tensors[name], np.float32) for name in place.tensors)
        pairs = zip(*map(np.ascontiguousarray, from_peft(a, b, len(place.linears))), strict=True)
        adapter |= zip(place.linears, pairs, strict=True)
    return adapter, config


class _Place(NamedTuple):
    """Two tensors of a file, the linears whose adapters they hold (several: a stack of experts), and their shapes."""

    tensors: tuple[str, str]
    linears: tuple[str, ...]
    shapes: tuple[tuple[int, int], tuple[int, int]]


def _places(arch: Architecture, config: LoraConfig) -> list[_Place]:
    places = []
    for layer in range(arch.layers):
        shapes = linear_shapes(arch, layer)
        chosen = [linear for linear in shapes if _module(linear) in config.modules]
        # PEFT wraps a module once for each of its parameters, the first innermost, and names both by the module.
        wrapped = [linear for linear in chosen if ".*." in linear]
        for linear in chosen:
            name, linears = linear, (linear,)
            if linear in wrapped:
                assert arch.experts is not None
                name = linear.split(".*.")[0] + ".base_layer" * (len(wrapped) - 1 - wrapped.index(linear))
                linears = tuple(linear.replace("*", str(expert)) for expert in range(arch.experts.count))
            outputs, inputs = shapes[linear]
            rank = config.rank * len(linears)
            places.append(
                _Place(
                    (f"{PREFIX}layers.{layer}.{name}.lora_A.weight", f"{PREFIX}layers.{layer}.{name}.lora_B.weight"),
                    tuple(f"layers.{layer}.{linear}" for linear in linears),
                    ((rank, inputs), (outputs, rank)),
                )
            )
    return places


def _module(linear: str) -> str:
    return linear.rpartition(".")[2]


def _stacks(arch: Architecture) -> set[str]:
    return {linear for layer in range(arch.layers) for linear in linear_shapes(arch, layer) if ".*." in linear}


def _targets(arch: Architecture, config: LoraConfig) -> dict[str, list[str] | None]:
    """What PEFT is told to adapt; one name may be that of linears and of experts' parameters."""
    linears = {linear for layer in range(arch.layers) for linear in linear_shapes(arch, layer)}
    plain = {_module(linear) for linear in linears - _stacks(arch)}
    targets: dict[str, list[str] | None] = {"target_modules": [m for m in config.modules if m in plain] or None}
    if parameters := [stack.replace(".*", "") for stack in sorted(_stacks(arch)) if _module(stack) in config.modules]:
        targets["target_parameters"] = parameters
    return targets


def _read_config(path: Path) -> dict[str, Any]:
    described = read_json(path)
    for key, known in (("peft_type", ("LORA",)), ("bias", ("none", None)), ("init_lora_weights", BASE_KEPT)):
        if described.get(key) not in known:
            raise ConfigError(f"{path}: {key} is {described.get(key)!r}, but only {known[0]!r} is supported")
    for key in UNSUPPORTED:
        if described.get(key):
            raise ConfigError(f"{path}: {key} is {described[key]!r}, which is not supported")
    for key, kinds in (("r", int), ("lora_alpha", (int, float))):
        value = described.get(key)
        if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
            raise ConfigError(f"{path}: {key} is {value!r}, but must be a number above 0")
    return described


def _check(
    tensors: Mapping[str, np.ndarray], places: list[_Place], arch: Architecture, config: LoraConfig, where: str
) -> None:
    """Names the first module that the base has not, or tensor that is missing, unexpected, or misshapen."""
    known = adaptable(arch)
    expected = {name: shape for place in places for name, shape in zip(place.tensors, place.shapes, strict=True)}
    if unknown := [module for module in config.modules if module not in known]:
        raise UserError(f"{where}: {unknown[0]!r} is not a linear that can be adapted; known: {', '.join(known)}")
    if missing := sorted(expected.keys() - tensors.keys()):
        raise UserError(f"{where}: {len(missing)} of {len(expected)} LoRA tensors are missing, first {missing[0]}")
    if extra := sorted(tensors.keys() - expected.keys()):
        raise UserError(f"{where}: {len(extra)} tensors are not LoRA on the base's linears, first {extra[0]}")
    for name, shape in sorted(expected.items()):
        if tensors[name].shape != shape:
            raise UserError(f"{where}: {name} is {tensors[name].shape}, but the rank and the base ask for {shape}")
    if not expected:
        raise UserError(f"{where}: no linear of the base is adapted")
