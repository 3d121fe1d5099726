"""Rows of somebody else's Parquet and JSONL files (.jsonl, .jsonl.gz, .jsonl.zst), one at a time.

Parquet is read by pyarrow with the file's own schema: `datasets.load_dataset` casts all splits to one schema, which
fails where their unused columns differ. Only the wanted columns are decoded.
"""

import difflib
import gzip
import io
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.strict_json import parse_lines

BATCH_ROWS = 1024  # rows of a Parquet file in memory at a time
READ_BYTES = 1 << 20

Needed = Sequence[tuple[str, ...]]  # of each tuple's columns at least one must be there


OnBytes = Callable[[bytes], object]


def read_rows(
    path: Path,
    needed: Needed,
    optional: Sequence[str],
    on_bytes: OnBytes = lambda raw: None,
    *,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (place, row) of a file in its order; places count from 1. A row has what is there of the columns named.

    on_bytes: called with the file's bytes, as they lie on the disk, in order; all of them once the rows have ended.
    batch_rows: of a Parquet file in memory at a time.
    Raises UserError naming the file, and its row or column, for what cannot be read and for a missing column.
    """
    try:
        if _start(path).startswith(b"version https://git-lfs"):
            raise UserError(f"{path}: only the pointer of a Git LFS file; fetch the file itself (git lfs pull)")
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, needed, optional, on_bytes, batch_rows)
        else:
            yield from _jsonl_rows(path, needed, optional, on_bytes)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error})") from error


def _parquet_rows(
    path: Path, needed: Needed, optional: Sequence[str], on_bytes: OnBytes, batch_rows: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            found = file.schema_arrow.names
            _check_columns(found, needed, f"{path}: column")
            wanted = [column for column in [*itertools.chain(*needed), *optional] if column in found]
            for batch in file.iter_batches(batch_rows, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
    except (pyarrow.ArrowException, ValueError, OverflowError, OSError) as error:  # also a date that no datetime holds
        raise UserError(f"{path}: {_fault(path)} (after row {number}: {error})") from error
    with _open(path, on_bytes) as file:  # a Parquet file is not read in the order of its bytes
        _drain(file)


def _fault(path: Path) -> str:
    """What is probably wrong with a Parquet file that cannot be read, and what to do."""
    if not _start(path).startswith(b"PAR1"):
        return "not a Parquet file; download it again"
    return "damaged or cut off; download it again"


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _jsonl_rows(
    path: Path, needed: Needed, optional: Sequence[str], on_bytes: OnBytes
) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with _open(path, on_bytes) as file:
            lines = _unpacked(path, file)
            for number, row in parse_lines(lines, path):
                _check_columns(row, needed, f"{path}:{number}: key")
                yield f"{path}:{number}", row
            _drain(file)
    except _DAMAGED.get(path.suffix, ()) as error:
        raise UserError(f"{path}: damaged or cut off; download it again ({error})") from error


_DAMAGED = {".gz": (EOFError, zlib.error, gzip.BadGzipFile), ".zst": (OSError,)}  # what the unpackers raise


def _unpacked(path: Path, file: io.BufferedReader) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=file)
    if path.suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), READ_BYTES)
    return file


class _Tapped(io.RawIOBase):
    """A file whose bytes are shown to somebody else as they are read."""

    def __init__(self, path: Path, on_bytes: OnBytes):
        self._file = path.open("rb", buffering=0)
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        self._on_bytes(bytes(memoryview(buffer)[:count]))
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _open(path: Path, on_bytes: OnBytes) -> Iterator[io.BufferedReader]:
    with _Tapped(path, on_bytes) as raw:
        yield io.BufferedReader(raw, READ_BYTES)


def _drain(file: io.BufferedReader) -> None:
    while file.read(READ_BYTES):
        pass


def _check_columns(found: Collection[str], needed: Needed, what: str) -> None:
    for choices in needed:
        if not any(choice in found for choice in choices):
            names = " or ".join(f'"{choice}"' for choice in choices)
            near = difflib.get_close_matches(choices[0], found, 1)
            hint = f'; is it what "{near[0]}" holds? Then rename that' if near else ""
            raise UserError(f"{what} {names} is missing; found {', '.join(found) or 'none'}{hint}")
