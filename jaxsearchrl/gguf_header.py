"""The container format of .gguf files: keys and values, a table of tensors, and their bytes, mapped and not read.

The `gguf` package reads it too, but in seconds for a vocabulary's hundred thousand strings; this takes a tenth of one.
Layout (versions 2 and 3, little-endian): https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from jaxsearchrl.errors import UserError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it lies in the file. shape: slowest axis first; data: uint8, its last axis a row's packed bytes."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    data: np.ndarray

    @property
    def bytes_per_weight(self) -> float:
        """How finely it is quantised: 4.0 for F32, 1.0625 for Q8_0."""
        return self.data.nbytes / math.prod(self.shape)


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Returns the metadata and the tensors by name. Raises UserError when the file is no GGUF or is cut short."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        cursor = _Cursor(content)
        if content[:4] != b"GGUF":
            raise UserError(f"{path}: not a GGUF file (it does not start with 'GGUF')")
        cursor.at = 4
        version, tensor_count, value_count = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
        if version not in (2, 3):
            raise UserError(f"{path}: GGUF version {version} is not supported; known: 2, 3 (little-endian)")
        metadata = {cursor.string(): cursor.value(cursor.take("I")) for _ in range(value_count)}
        table = [cursor.tensor() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}, but must be a whole number, at least 1")
        start = -(-cursor.at // alignment) * alignment
        return metadata, {name: _stored(content, start + at, name, shape, kind) for name, shape, kind, at in table}
    except (struct.error, ValueError, KeyError, OSError) as error:
        raise UserError(f"{path}: not a whole GGUF file ({error}); download it again") from error


class _Cursor:
    """Reads forward through the header."""

    def __init__(self, content: mmap.mmap):
        self.content, self.at = content, 0

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.content, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def bytes(self, length: int) -> bytes:
        if length > len(self.content) - self.at:
            raise ValueError(f"{length} bytes announced at {self.at}, past the end")
        self.at += length
        return self.content[self.at - length : self.at]

    def string(self) -> str:
        return self.bytes(self.take("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            if kind not in SCALARS:
                raise ValueError(f"unknown value type {kind}")
            return self.take(SCALARS[kind])
        element, count = self.take("I"), self.take("Q")
        if element in SCALARS:
            code = f"<{SCALARS[element]}"
            return np.frombuffer(self.bytes(count * struct.calcsize(code)), np.dtype(code)).tolist()
        return [self.value(element) for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], gguf.GGMLQuantizationType, int]:
        """A line of the table: name, shape, storage type, offset of its bytes."""
        name, dimensions = self.string(), self.take("I")
        if dimensions > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self.take("Q") for _ in range(dimensions))[::-1]
        return name, shape, gguf.GGMLQuantizationType(self.take("I")), self.take("Q")


def _stored(
    content: mmap.mmap, start: int, name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType
) -> StoredTensor:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if not shape or min(shape) < 1 or shape[-1] % block:
        raise ValueError(f"tensor {name} of shape {shape} does not divide into blocks of {block}")
    stored = (*shape[:-1], shape[-1] // block * block_bytes)
    if start + math.prod(stored) > len(content):
        raise ValueError(f"tensor {name} lies past the end")
    data = np.frombuffer(content, np.uint8, math.prod(stored), start).reshape(stored)
    return StoredTensor(name, shape, kind, data)
