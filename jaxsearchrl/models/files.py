"""Checkpoints on disk: a Hugging Face folder or a .gguf file, seen through one small protocol.

Tensors are read one at a time and in part, so that a checkpoint need not fit into the host's memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes  # also teaches numpy the bfloat16 that safetensors returns
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxsearchrl.errors import UserError
from jaxsearchrl.models.architecture import Architecture, tensor_shapes
from jaxsearchrl.models.config_file import read_config, read_json
from jaxsearchrl.models.fingerprint import fingerprint, same_rows, sample_pieces
from jaxsearchrl.models.gguf_file import EMBEDDING, FLOATS, HEAD, GgufCheckpoint
from jaxsearchrl.models.hf_config import WITH_IMAGES, architecture_from_hf
from jaxsearchrl.models.mxfp4 import BLOCK, dequantise

MODEL, TEXT = "model.", "model.language_model."  # the text part of a model, alone and beside what sees
NOT_TEXT = ("model.visual.", "mtp.")
BLOCKS, SCALES = "_blocks", "_scales"  # what gpt-oss adds to the name of a tensor in MXFP4


class Checkpoint(Protocol):
    """Weights on disk under Hugging Face names and layouts (linears [out, in])."""

    @property
    def architecture(self) -> Architecture: ...

    @property
    def fingerprint(self) -> str:
        """sha256 over the architecture, tensor names, shapes and sampled bytes."""
        ...

    def names(self) -> set[str]: ...

    def stored_name(self, name: str) -> str:
        """A tensor's name on disk, where it may be one of a larger model."""
        ...

    def beside(self) -> Iterator[tuple[str, np.ndarray]]:
        """What else is stored there, of which we compute nothing: stored names and tensors, read one at a time."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def tensor(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Reads from disk what `index` cuts out of a tensor, as float32, float16 or bfloat16.

        index: slices of step 1, for the first axes; the others are read whole.
        """
        ...

    def packed(self, name: str, index: tuple[slice, ...] = ()) -> tuple[np.ndarray, np.ndarray] | None:
        """Of a tensor [E, in, out] stored in MXFP4: blocks uint8 [E, out, in/32, 16], scales uint8 [E, out, in/32].

        index: as for `tensor`, but of the axes [E, out, in/32]. None for a tensor that is stored otherwise.
        """
        ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a Hugging Face folder (config.json and safetensors) or a .gguf file; reads no weights yet.

    Raises UserError when the path is no such thing or its tensors are not those of the architecture, and ConfigError
    when the architecture is not supported.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if path.is_dir():
        checkpoint = FolderCheckpoint(path)
    elif path.suffix == ".gguf":
        checkpoint = GgufCheckpoint(path)
    else:
        raise UserError(f"{path}: neither a .gguf file nor a folder; for safetensors pass the folder with config.json")
    layers, stored = checkpoint.architecture.layers, len(checkpoint.names())
    if layers > stored:  # before a name is made for every tensor of every layer that a broken file claims
        raise UserError(f"{path}: {layers} layers (num_hidden_layers, block_count), but only {stored} tensors")
    check_names(checkpoint, tensor_shapes(checkpoint.architecture), str(path))
    return checkpoint


def check_names(checkpoint: Checkpoint, expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises UserError naming the tensors that are missing, unexpected or misshapen; `where` names the checkpoint."""
    names = checkpoint.names()
    faults = [("missing", n) for n in sorted(expected.keys() - names)]
    faults += [("unexpected", n) for n in sorted(names - expected.keys())]
    for name in sorted(names & expected.keys()):
        if checkpoint.shape(name) != tuple(expected[name]):
            faults.append(("misshapen", f"{name} is {checkpoint.shape(name)}, expected {tuple(expected[name])}"))
    if faults:
        listed = "; ".join(f"{fault} tensor {what}" for fault, what in faults[:5])
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise UserError(f"{where}: the weights do not fit the architecture: {listed}{more}")


class FolderCheckpoint:
    """A Hugging Face folder: config.json with model.safetensors, or with shards and their index.

    Of a model that sees (`WITH_IMAGES`) the text part is shown, as if it were alone: model.language_model.* is called
    model.*, and model.visual.* (what sees) and mtp.* (what predicts several tokens) are left out. Of no other model is
    anything left out but rotary buffers and a head that is the embedding.
    """

    def __init__(self, folder: Path):
        config = read_config(folder)
        self.architecture = architecture_from_hf(config, str(folder / "config.json"))
        slices = {name: shard.get_slice(name) for shard in _shards(folder) for name in shard.keys()}  # noqa: SIM118
        for name in [n for n in slices if n.endswith("rotary_emb.inv_freq")]:
            del slices[name]  # a buffer that old exports wrote; it follows from the config
        self._beside: dict[str, Any] = {}
        self._prefix = MODEL
        if config["model_type"] in WITH_IMAGES:
            self._prefix = TEXT
            self._beside = {name: slices.pop(name) for name in list(slices) if name.startswith(NOT_TEXT)}
            if strange := [name for name in slices if not name.startswith(TEXT) and name != HEAD]:
                raise UserError(f"{folder}: tensor {strange[0]} is in no known part of a model with images")
            slices = {name.replace(TEXT, MODEL, 1): slices[name] for name in slices}
        self._slices, self._packed = slices, _take_packed(folder, slices)
        for name, stored in self._slices.items():
            if stored.get_dtype() not in FLOATS:
                raise UserError(f"{folder}: tensor {name} is stored as {stored.get_dtype()}, not as a float")
        if self.architecture.tied and {HEAD, EMBEDDING} <= self._slices.keys():
            if not self._head_is_embedding():
                raise UserError(f"{folder}: tie_word_embeddings is true, but {HEAD} is not the embedding")
            del self._slices[HEAD]

    @property
    def fingerprint(self) -> str:
        """sha256 over the architecture, tensor names, shapes and sampled bytes."""
        parts = [(n, self.shape(n), stored.get_dtype(), _sampled(stored)) for n, stored in self._slices.items()]
        parts += [(n, self.shape(n), "MXFP4", _sampled(*pair)) for n, pair in self._packed.items()]
        return fingerprint(self.architecture, parts)

    def names(self) -> set[str]:
        """The tensors' names; of a tied head only the embedding's, and one for blocks and scales."""
        return self._slices.keys() | self._packed.keys()

    def stored_name(self, name: str) -> str:
        """See `Checkpoint`."""
        return name.replace(MODEL, self._prefix, 1) if name.startswith(MODEL) else name

    def beside(self) -> Iterator[tuple[str, np.ndarray]]:
        """See `Checkpoint`."""
        return ((name, stored[:]) for name, stored in sorted(self._beside.items()))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape as stored; [E, in, out] of a tensor in MXFP4."""
        if name in self._packed:
            experts, outputs, blocks, _ = self._packed[name][0].get_shape()
            return experts, blocks * BLOCK, outputs
        return tuple(self._slices[name].get_shape())

    def tensor(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Reads only the bytes of `index`, in the dtype in which they are stored; bfloat16 of MXFP4."""
        return self._unpacked(name, index) if name in self._packed else self._slices[name][index]

    def packed(self, name: str, index: tuple[slice, ...] = ()) -> tuple[np.ndarray, np.ndarray] | None:
        """See `Checkpoint`."""
        if name not in self._packed:
            return None
        blocks, scales = self._packed[name]
        return blocks[index], scales[index]

    def _unpacked(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        cuts = (*index, *(slice(None),) * (3 - len(index)))
        experts, inputs, outputs = (range(size)[cut] for size, cut in zip(self.shape(name), cuts, strict=True))
        first = inputs.start // BLOCK
        cut = slice(inputs.start - first * BLOCK, inputs.stop - first * BLOCK)
        read = (slice(outputs.start, outputs.stop), slice(first, -(-inputs.stop // BLOCK)))
        tensor = np.empty((len(experts), len(inputs), len(outputs)), ml_dtypes.bfloat16)
        blocks, scales = self._packed[name]
        for expert, matrix in zip(experts, tensor, strict=True):  # one at a time: what is between takes several times
            at = (slice(expert, expert + 1), *read)
            matrix[...] = dequantise(blocks[at], scales[at], tensor.dtype)[0, :, cut].T
        return tensor

    def _head_is_embedding(self) -> bool:
        head, embedding = self._slices[HEAD], self._slices[EMBEDDING]
        if head.get_dtype() != embedding.get_dtype() or self.shape(HEAD) != self.shape(EMBEDDING):
            return False
        return same_rows(lambda rows: head[rows], lambda rows: embedding[rows], self.shape(HEAD)[0])


def _sampled(*slices: Any) -> bytes:
    """Rows that stand for a tensor; of blocks and scales those at the same places."""
    pieces = sample_pieces(tuple(slices[-1].get_shape()))
    return b"".join(stored[piece].tobytes() for stored in slices for piece in pieces)


def _take_packed(folder: Path, slices: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Takes the tensors in MXFP4 out of `slices`: name -> slices of its blocks and scales (shapes: `Checkpoint`)."""

    def is_bytes(name: str) -> bool:
        return slices[name].get_dtype() == "U8"

    packed = {}
    parts = [name for name in slices if name.endswith((BLOCKS, SCALES)) and is_bytes(name)]
    for name in sorted({part.removesuffix(BLOCKS).removesuffix(SCALES) for part in parts}):
        both = [name + BLOCKS, name + SCALES]
        for part in both:
            if part not in slices or not is_bytes(part):
                raise UserError(f"{folder}: tensor {part} is missing or not of bytes, though {name} is in MXFP4")
        blocks, scales = (slices.pop(part) for part in both)
        if len(scales.get_shape()) != 3 or blocks.get_shape() != [*scales.get_shape(), BLOCK // 2]:
            raise UserError(
                f"{folder}: tensor {name} is in MXFP4, but its blocks {blocks.get_shape()} and "
                f"scales {scales.get_shape()} are not [E, out, in/32, 16] and [E, out, in/32]"
            )
        if name in slices:
            raise UserError(f"{folder}: tensor {name} is stored both as floats and in MXFP4")
        packed[name] = (blocks, scales)
    return packed


def _shards(folder: Path) -> list[Any]:
    """Opens every safetensors file of the folder's model; each tensor lies in exactly one."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        if not (folder / "model.safetensors").exists():
            raise UserError(
                f"{folder}: no model.safetensors and no model.safetensors.index.json; "
                "save the model with safetensors (save_pretrained does), or pass a .gguf file"
            )
        return [_open(folder / "model.safetensors")]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index}: weight_map is missing or empty")
    if unnamed := [name for name, file in weight_map.items() if not isinstance(file, str)]:
        raise UserError(f"{index}: weight_map names no file for {unnamed[0]}; download the checkpoint again")
    shards = {file: _open(folder / file) for file in sorted(set(weight_map.values()))}
    for file, shard in shards.items():
        listed = {name for name, home in weight_map.items() if home == file}
        if wrong := sorted(listed ^ set(shard.keys())):
            place = "named by the index but not in" if wrong[0] in listed else "not named by the index but in"
            raise UserError(f"{index}: tensor {wrong[0]} is {place} {file}; download the checkpoint again")
    return list(shards.values())


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file, though the index names it; download it") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); download it again") from error
