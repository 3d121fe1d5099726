"""One file of rollout records, read where it is needed.

A first pass over the file keeps a summary of each record, and every few megabytes the state of the decompressor. A
record is then read from the nearest state before it, so that opening one costs the same anywhere in the file.
"""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import SEEK_CUR
from pathlib import Path
from typing import Any

from zlib_ng import zlib_ng  # half of zlib's time, which is most of a first pass

from jaxsearchrl.errors import UserError
from jaxsearchrl.records import RolloutRecord, from_json_line
from jaxsearchrl.viewer.summary import Summary, summarise

_READ = 1 << 20  # compressed bytes at a time
_BETWEEN_STATES = 4 << 20  # uncompressed bytes
_GZIP = 31  # zlib's number for a gzip header


@dataclass(frozen=True)
class _Restart:
    """A place from which decompression can go on. state: None for a file that is not compressed."""

    plain: int
    stored: int
    state: Any


@dataclass(frozen=True)
class _Line:
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Contents:
    """What a first pass found, equal to itself only. faults: in words; none hides the other records."""

    summaries: tuple[Summary, ...]
    faults: tuple[str, ...]
    lines: dict[int, _Line]
    restarts: tuple[_Restart, ...]

    def summary(self, number: int) -> Summary | None:
        """The record that stands in line `number`."""
        return next((summary for summary in self.summaries if summary.number == number), None)


class RecordFile:
    """A .jsonl or .jsonl.gz file of records. Any number of threads may read; a file that has grown is read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._signature: tuple[int, int] | None = None
        self._contents: Contents | None = None

    def known(self) -> Contents | None:
        """The contents, if the first pass has been made since the file last changed."""
        return self._contents if self._signature == _signature(self.path) else None

    def contents(self) -> Contents:
        """The contents; makes the first pass if need be. Raises UserError for a file that is not there."""
        with self._lock:
            return self.known() or self._read(lambda: None)

    def read_ahead(self, wait: Callable[[], object]) -> None:
        """Makes the first pass if need be, calling `wait` between records; who asks for the contents does not wait."""
        if self.known() is None:
            self._read(wait)

    def _read(self, wait: Callable[[], object]) -> Contents:
        signature = _signature(self.path)
        contents = _first_pass(self.path, wait)
        self._contents, self._signature = contents, signature
        return contents

    def record(self, number: int) -> RolloutRecord:
        """The record in line `number`, from 1. Raises UserError where there is none."""
        contents = self.contents()
        where = f"{self.path}, line {number}"
        if (line := contents.lines.get(number)) is None:
            raise UserError(f"{where}: no such record")
        restart = max((r for r in contents.restarts if r.plain <= line.start), key=lambda r: r.plain)
        found = b""
        for start, data in _blocks(self.path, restart, []):
            found += data[max(0, line.start - start) : max(0, line.stop - start)]
            if start + len(data) >= line.stop:
                break
        return from_json_line(found, where)

    def containing(self, text: str) -> set[int]:
        """The numbers of records that have the text in the question or in any turn, in upper or lower case."""
        wanted, known = text.casefold(), self.contents().lines
        numbers = set()
        for number, _, line in _lines(_blocks(self.path, _start(self.path), [])):
            if number in known and any(wanted in part.casefold() for part in _texts(_fields(line))):
                numbers.add(number)
            if number >= max(known, default=0):
                break  # what follows is broken
        return numbers


def _signature(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    return stat.st_mtime_ns, stat.st_size


def _first_pass(path: Path, wait: Callable[[], object]) -> Contents:
    restarts: list[_Restart] = []
    summaries: list[Summary] = []
    faults: list[str] = []
    lines: dict[int, _Line] = {}
    try:
        for number, start, line in _lines(_blocks(path, _start(path), restarts)):
            wait()
            if not line.endswith(b"\n"):
                faults.append(f"line {number} is not whole: it is being written, or the file was cut")
                continue
            try:
                summaries.append(summarise(_fields(line), number))
                lines[number] = _Line(start, start + len(line))
            except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
                faults.append(f"line {number} is no rollout record ({type(error).__name__}: {error})"[:300])
    except (UserError, OSError) as error:
        faults.append(f"the file cannot be read to its end ({error})")
    return Contents(tuple(summaries), tuple(faults), lines, tuple(restarts))


def _start(path: Path) -> _Restart:
    return _Restart(0, 0, zlib_ng.decompressobj(_GZIP) if path.suffix == ".gz" else None)


def _blocks(path: Path, restart: _Restart, restarts: list[_Restart]) -> Iterator[tuple[int, bytes]]:
    """Yields (place, bytes) of the uncompressed file from a restart on; adds to `restarts` on the way.

    Raises UserError where the file is damaged, after all that stands before the damage.
    """
    place, state, size = restart.plain, restart.state and restart.state.copy(), _READ
    with path.open("rb") as file:
        file.seek(restart.stored)
        while True:
            if not restarts or place - restarts[-1].plain >= _BETWEEN_STATES:
                restarts.append(_Restart(place, file.tell(), state and state.copy()))
            data = file.read(size)
            if not data:
                return
            if state is not None:
                kept, stored = state.copy(), len(data)
                try:
                    data, state = _inflated(data, state)
                except zlib_ng.error as error:  # type: ignore[misc]  # its stub has an instance, not a class
                    if stored == 1:
                        raise UserError(f"{path}: damaged at byte {file.tell()} ({error})") from error
                    file.seek(-stored, SEEK_CUR)  # again in smaller pieces: the error took what stands before it
                    size, state = max(1, stored // 32), kept
                    continue
            if data:
                yield place, data
                place += len(data)


def _inflated(data: bytes, state: Any) -> tuple[bytes, Any]:
    """What the data are uncompressed, and the decompressor for those that follow."""
    pieces = []
    while data:
        pieces.append(state.decompress(data))
        data = state.unused_data
        if state.eof:  # another member may follow
            state = zlib_ng.decompressobj(_GZIP)
    return b"".join(pieces), state


def _lines(blocks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, int, bytes]]:
    """Yields (number from 1, place, line with its newline); a last line that is cut comes without one."""
    number, start, parts = 1, 0, []
    for place, data in blocks:
        begin = 0
        while (end := data.find(b"\n", begin) + 1) > 0:
            parts.append(data[begin:end])
            yield number, start, b"".join(parts)
            number, start, parts, begin = number + 1, place + end, [], end
        if begin < len(data):
            parts.append(data[begin:])
    if parts:
        yield number, start, b"".join(parts)


def _fields(line: bytes) -> dict[str, Any]:
    """The line's object without its two longest fields, which a summary does not need."""
    short = line
    for key in (b',"tokens":[', b',"sample_logprobs":['):
        start = short.find(key)
        if start >= 0:
            short = short[: start + len(key)] + short[short.find(b"]", start) :]
    try:
        data = json.loads(short)
        if data["tokens"] == data["sample_logprobs"] == []:
            return data
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # what was cut out stood somewhere else
    return json.loads(line)


def _texts(data: dict[str, Any]) -> Iterator[str]:
    """All that can be searched in a record."""
    yield str(data.get("query", ""))
    yield str(data.get("task_id", ""))
    for turn in data.get("turns", ()):
        for key in ("text", "reasoning", "observation"):
            yield str(turn.get(key, ""))
        for call in turn.get("calls", ()):
            yield json.dumps([call.get("name"), call.get("arguments"), call.get("outcome")], ensure_ascii=False)
