"""JSON as its standard has it: no key twice, no NaN, no infinite number; and no nesting without end."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError

MAX_DEPTH = 100  # more than any file of ours needs, and far less than what Python can follow


def parse(text: str) -> Any:
    """The value that a text says. Raises ValueError naming the fault."""
    try:
        value = DECODER.decode(text)
    except RecursionError:
        raise ValueError(too_deep(MAX_DEPTH)) from None
    check_value(value, MAX_DEPTH)
    return value


def read_object(line: bytes | str, where: str) -> dict[str, Any]:
    """The object that a line of a JSONL file holds. Raises UserError, starting with `where`."""
    try:
        value = parse(line if isinstance(line, str) else line.decode())
    except UnicodeDecodeError as error:
        if error.object.startswith(b"\x1f\x8b"):
            raise UserError(f"{where}: the file is compressed by gzip; unpack it (gunzip)") from error
        raise UserError(f"{where}: not UTF-8 text (byte {error.start + 1}); save the file as UTF-8") from error
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}); every line must be one JSON object") from error
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def read_objects(
    path: str | Path, on_line: Callable[[bytes], object] = lambda raw: None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) of a JSONL file, in order; blank lines are passed over.

    on_line: called with the bytes of every line, blank ones included.
    Raises UserError naming file and line, and OSError for a file that cannot be read.
    """
    with open(path, "rb") as file:
        yield from parse_lines(file, path, on_line)


def parse_lines(
    lines: Iterable[bytes], path: str | Path, on_line: Callable[[bytes], object] = lambda raw: None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """As `read_objects`, of the lines of a file that is open (and perhaps compressed). path: its name, for messages."""
    for number, raw in enumerate(lines, start=1):
        on_line(raw)
        # A byte order mark is no part of the JSON.
        line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if line.strip():
            yield number, read_object(line, f"{path}:{number}")


def check_value(value: Any, levels: int) -> None:
    """Raises ValueError for nesting deeper than `levels`, and for a number too large for a float (1e999)."""
    layer = [value]
    for _ in range(levels + 1):
        if any(isinstance(item, float) and math.isinf(item) for item in layer):
            raise ValueError("a number is out of range")
        nested = [item for item in layer if isinstance(item, dict | list)]
        if not nested:
            return
        layer = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
    raise ValueError(too_deep(levels))


def too_deep(levels: int) -> str:
    """The fault in words."""
    return f"the JSON is nested deeper than {levels} levels"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {json.dumps(key[:40])} stands twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
