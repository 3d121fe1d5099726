"""A base model with an adapter added to its weights, as a Hugging Face folder that needs no LoRA to be served."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.models.files import Checkpoint
from jaxsearchrl.models.hf_config import architecture_to_hf

SHARD_BYTES = 2**31
CONFIG, INDEX = "config.json", "model.safetensors.index.json"


def write_merged(
    folder: Path,
    base: Path,
    checkpoint: Checkpoint,
    adapter: Mapping[str, tuple[np.ndarray, np.ndarray]],
    scale: float,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Fills the empty folder with W + scale (A B)ᵀ for each adapted linear and all else as it is in the checkpoint.

    base: where the checkpoint lies; the small files of a folder (settings, tokenizer, licence) are copied. Weights keep
    their dtype and stored names; those of a .gguf file become float32, those in MXFP4 bfloat16. At most a shard (2 GiB)
    and a tensor, twice, are in memory. The config is written last. advance: called for each tensor of `names`.
    """
    shard: dict[str, np.ndarray] = {}
    weight_map: dict[str, str] = {}
    total = 0

    def save() -> None:
        file = f"model-{len(set(weight_map.values())) + 1:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
        shard.clear()

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        turned = {
            s.hf_name for s in build_model(checkpoint.architecture, LoraConfig(rank=0)).specs.values() if s.turned
        }
        for name in sorted(checkpoint.names()):
            tensor = np.ascontiguousarray(checkpoint.tensor(name))
            linear = name.removeprefix("model.").removesuffix(".weight")
            if pair := adapter.get(linear):
                tensor = plus(tensor, pair, scale, turned=True)
            elif _expert(linear, 0) in adapter:
                pairs = (adapter[_expert(linear, number)] for number in range(len(tensor)))
                matrices = zip(tensor, pairs, strict=True)
                tensor = np.stack([plus(matrix, pair, scale, turned=name in turned) for matrix, pair in matrices])
            yield checkpoint.stored_name(name), tensor
            advance()
        yield from checkpoint.beside()

    for name, tensor in tensors():
        if shard and sum(value.nbytes for value in shard.values()) + tensor.nbytes > SHARD_BYTES:
            save()
        shard[name] = tensor
        total += tensor.nbytes
    save()
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    if base.is_dir():
        _copy_small_files(base, folder)
        config = json.loads((base / CONFIG).read_text(encoding="utf-8"))
        config.pop("quantization_config", None)  # nothing is packed any more
    else:
        config = architecture_to_hf(checkpoint.architecture)
    (folder / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")


def plus(matrix: np.ndarray, pair: tuple[np.ndarray, np.ndarray], scale: float, *, turned: bool) -> np.ndarray:
    """The matrix, [out, in] if turned and else [in, out], with its adapter added in float32; it keeps its dtype."""
    change = pair[0] @ pair[1]
    return (matrix.astype(np.float32) + scale * (change.T if turned else change)).astype(matrix.dtype)


def _expert(linear: str, number: int) -> str:
    """One of the linears of a stack: "mlp.experts.gate_up_proj" -> "mlp.experts.3.gate_up_proj"."""
    module, _, last = linear.rpartition(".")
    return f"{module}.{number}.{last}"


def _copy_small_files(base: Path, folder: Path) -> None:
    """What stands beside the weights; not the weights in other formats, and nothing hidden."""
    for path in base.iterdir():
        kept = (
            path.suffix in (".json", ".txt", ".jinja", ".model", ".md", "") and path.is_file() and path.name[0] != "."
        )
        if kept and path.name not in (CONFIG, "adapter_config.json") and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
