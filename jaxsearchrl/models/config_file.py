"""The config.json of a model's folder. What it says is all that a plan needs to know of a model."""

import json
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.hf_config import architecture_from_hf


def read_architecture(path: str | Path) -> Architecture:
    """Of a Hugging Face folder, which need hold no weights, or of a .gguf file.

    Raises UserError when the path is no such thing, and ConfigError when the architecture is not supported.
    """
    path = Path(path).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        try:
            from jaxsearchrl.models.gguf_file import GgufCheckpoint
        except ModuleNotFoundError as error:
            raise UserError(f"{path}: reading a .gguf file needs {error.name}: pip install {error.name}") from None
        return GgufCheckpoint(path).architecture
    return architecture_from_hf(read_config(path), str(path / "config.json"))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, with the stop ids of generation_config.json added to its own (chat models name some only there).

    Those of a model with images may stand in its text part.
    """
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise UserError(f"{folder}: this is a LoRA adapter; pass the folder of its base model")
    config = read_json(folder / "config.json")
    if (folder / "generation_config.json").exists():
        text = config.get("text_config")
        holders = [config, text if isinstance(text, dict) else {}, read_json(folder / "generation_config.json")]
        named = [holder.get("eos_token_id") for holder in holders]
        config["eos_token_id"] = [
            i for ids in named if ids is not None for i in (ids if isinstance(ids, list) else [ids])
        ]
    return config


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file. Raises UserError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; pass the folder that holds it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object")
    return value
