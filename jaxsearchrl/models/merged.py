"""A base model with an adapter added to its weights, as a Hugging Face folder that needs no LoRA to be served."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

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
    their dtype; those of a .gguf file become float32, those in MXFP4 bfloat16. At most a shard (2 GiB) and a tensor are
    in memory. The config is written last. advance: called for each tensor.
    """
    shard: dict[str, np.ndarray] = {}
    weight_map: dict[str, str] = {}
    total = 0

    def save() -> None:
        file = f"model-{len(set(weight_map.values())) + 1:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
        shard.clear()

    for name in sorted(checkpoint.names()):
        tensor = np.ascontiguousarray(checkpoint.tensor(name))
        if pair := adapter.get(name.removeprefix("model.").removesuffix(".weight")):
            tensor = (tensor.astype(np.float32) + scale * (pair[0] @ pair[1]).T).astype(tensor.dtype)
        if shard and sum(value.nbytes for value in shard.values()) + tensor.nbytes > SHARD_BYTES:
            save()
        shard[name] = tensor
        total += tensor.nbytes
        advance()
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


def _copy_small_files(base: Path, folder: Path) -> None:
    """What stands beside the weights; not the weights in other formats, and nothing hidden."""
    for path in base.iterdir():
        kept = (
            path.suffix in (".json", ".txt", ".jinja", ".model", ".md", "") and path.is_file() and path.name[0] != "."
        )
        if kept and path.name not in (CONFIG, "adapter_config.json") and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
