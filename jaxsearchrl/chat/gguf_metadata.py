"""Reads the metadata of a GGUF file (version 2 or 3): the key/value table in front of the tensors, nothing else.

A tokenizer's arrays hold about 100 thousand strings; one pass over the bytes takes a fraction of a second.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """Every key with its value as plain Python (numbers, strings, lists).

    Raises UserError when the file is missing, no GGUF, of an unknown version, or cut short.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.stat().st_size < 24:
        raise UserError(f"{path}: not a GGUF file (too short)")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise UserError(f"{path}: not a GGUF file (it starts with {data[:4]!r})")
        version, _tensors, keys = struct.unpack_from("<IQQ", data, 4)
        if version not in (2, 3):
            raise UserError(f"{path}: GGUF version {version} (or big-endian) is not supported; convert it to version 3")
        reader = _Reader(data, 24)
        try:
            return {reader.string(): reader.value(reader.number("I")) for _ in range(keys)}
        except (struct.error, ValueError) as error:
            raise UserError(f"{path}: damaged or cut short at byte {reader.offset} ({error}); fetch it again") from None


class _Reader:
    """A position in the file; every method reads one thing there and moves behind it."""

    def __init__(self, data: mmap.mmap, offset: int):
        self._data = data
        self.offset = offset

    def number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def string(self) -> str:
        length = self.number("Q")
        raw = self._data[self.offset : self.offset + length]
        if len(raw) != length:
            raise ValueError("a string ends behind the file")
        self.offset += length
        return raw.decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, length = self.number("I"), self.number("Q")
            if kind in _SCALARS:
                return list(self._numbers(_SCALARS[kind], length))
            return [self.value(kind) for _ in range(length)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self.number(_SCALARS[kind])

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{code}")
        numbers = layout.unpack_from(self._data, self.offset)
        self.offset += layout.size
        return numbers
