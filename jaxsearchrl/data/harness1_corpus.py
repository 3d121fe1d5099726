"""The part of the SEC filings that a draw of questions is played on, cut from the published shards as they stream by.

A chunk's id is `{accession number}_{number}`; chunks of one filing are neighbours by their numbers. Kept are gold
chunks, their neighbours, and of all others those whose hash says so, so that the same are drawn whatever the questions
are. In memory are the ids that were kept, and one batch of texts.
"""

import bisect
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from jaxsearchrl.errors import UserError
from jaxsearchrl.search import filings
from jaxsearchrl.text import well_formed

COLUMNS = ("chunk_id", "document_text", "metadata_json")
_BATCH_ROWS = 4096


class Neighbours:
    """Whether a chunk lies within `radius` of a gold chunk of the same filing."""

    def __init__(self, gold: Iterable[str], radius: int) -> None:
        self._radius = radius
        self._numbers: dict[str, list[int]] = {}
        for filing, number in sorted(map(split_id, gold)):
            self._numbers.setdefault(filing, []).append(number)

    def __contains__(self, chunk_id: str) -> bool:
        filing, number = split_id(chunk_id)
        numbers = self._numbers.get(filing, ())
        place = bisect.bisect_left(numbers, number)
        nearest = numbers[max(0, place - 1) : place + 1]
        return number >= 0 and any(abs(near - number) <= self._radius for near in nearest)


def split_id(chunk_id: str) -> tuple[str, int]:
    """The filing of a chunk and its number there; (the id, -1) where it has none."""
    filing, _, number = chunk_id.rpartition("_")
    return (filing, int(number)) if filing and number.isdecimal() else (chunk_id, -1)


def fraction(seed: int, chunk_id: str) -> float:
    """A number in [0, 1) that an id draws by its hash."""
    digest = hashlib.blake2b(f"{seed}\0{chunk_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def count_chunks(shards: Sequence[Path]) -> int:
    """The rows of all shards. Raises UserError for a shard that cannot be read or lacks a column."""
    count = 0
    for shard in shards:
        with _opened(shard) as file:
            for column in COLUMNS:
                if column not in file.schema_arrow.names:
                    found = ", ".join(file.schema_arrow.names)
                    raise UserError(f'{shard}: column "{column}" is missing; found {found}')
            count += file.metadata.num_rows
    return count


def find_ids(shards: Sequence[Path], wanted: frozenset[str], advance: Callable[[int], object]) -> frozenset[str]:
    """Those of `wanted` that the shards have. advance: called with the number of chunks that went by."""
    found: set[str] = set()
    for _, batch in _batches(shards, ["chunk_id"]):
        found.update(wanted.intersection(batch.column("chunk_id").to_pylist()))
        advance(batch.num_rows)
    return frozenset(found)


def cut_corpus(
    shards: Sequence[Path],
    path: Path,
    gold: frozenset[str],
    *,
    radius: int,
    share: float,
    seed: int,
    advance: Callable[[int], object],
) -> tuple[dict[str, int], set[str]]:
    """Writes the chunks to keep as a corpus, in their published order; returns how many are what, and their ids.

    share: of the chunks that are neither gold nor near it, how many are kept. Of chunks with one id the first is.
    Raises UserError naming shard and row of what cannot be used.
    """
    neighbours, counts, written = Neighbours(gold, radius), Counter[str](), set[str]()

    def kind(chunk_id: str) -> str:
        if chunk_id in gold:
            return "gold"
        if chunk_id in neighbours:
            return "neighbours"
        return "drawn" if fraction(seed, chunk_id) < share else ""

    with path.open("w", encoding="utf-8", newline="\n") as file:
        for where, batch in _batches(shards, COLUMNS):
            ids = batch.column("chunk_id").to_pylist()
            kept = [(row, chunk_id, as_what) for row, chunk_id in enumerate(ids) if (as_what := kind(chunk_id))]
            texts = batch.take(pyarrow.array([row for row, _, _ in kept], pyarrow.int64()))
            for (row, chunk_id, as_what), text, metadata in zip(
                kept, texts.column("document_text").to_pylist(), texts.column("metadata_json").to_pylist(), strict=True
            ):
                if chunk_id in written:
                    counts["repeated"] += 1
                    continue
                written.add(chunk_id)
                counts[as_what] += 1
                document = _document(chunk_id, text, metadata, f"{where[0]}: row {where[1] + row + 1}")
                file.write(json.dumps(document, ensure_ascii=False) + "\n")
            advance(batch.num_rows)
    kinds = ("gold", "neighbours", "drawn")
    return {"chunks": len(written), **{name: counts[name] for name in (*kinds, "repeated")}}, written


def _document(chunk_id: str, text: Any, metadata: Any, where: str) -> dict[str, str]:
    if not isinstance(text, str):
        raise UserError(f'{where}: "document_text" of {chunk_id} must be a text, found {type(text).__name__}')
    text = well_formed(text)
    return {"_id": chunk_id, "title": filings.title(text, metadata, where), "text": text}


def _batches(shards: Sequence[Path], columns: Sequence[str]) -> Iterator[tuple[tuple[Path, int], pyarrow.RecordBatch]]:
    """((shard, number of its first row from 0), batch), shard after shard. Raises UserError, for blank ids too."""
    for shard in shards:
        first = 0
        with _opened(shard) as file:
            try:
                for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns)):
                    ids = batch.column("chunk_id").to_pylist()
                    for row, chunk_id in enumerate(ids):
                        if not isinstance(chunk_id, str) or not chunk_id:
                            raise UserError(f'{shard}: row {first + row + 1}: "chunk_id" is {chunk_id!r}, not an id')
                    yield (shard, first), batch
                    first += batch.num_rows
            except (pyarrow.ArrowException, OSError) as error:
                raise UserError(
                    f"{shard}: damaged or cut off after row {first}; download it again ({error})"
                ) from error


def _opened(shard: Path) -> parquet.ParquetFile:
    try:
        return parquet.ParquetFile(shard)
    except (pyarrow.ArrowException, OSError) as error:
        with shard.open("rb") as file:
            pointer = file.read(64).startswith(b"version https://git-lfs")
        what = "only the pointer of a Git LFS file; fetch the file itself (git lfs pull)" if pointer else str(error)
        raise UserError(f"{shard}: cannot be read: {what}") from error
