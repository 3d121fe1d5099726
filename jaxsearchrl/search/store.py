"""Documents on disk, read through memory maps, so that a corpus of millions needs little memory of its own.

    documents.bin   title, newline, text, newline of every document in corpus order (UTF-8)
    ids.bin         the ids in corpus order
    table.bin       uint64 [3, N + 1]: where documents start, where ids start, the bytes of each title
    id_table.bin    uint64 [2, N]: hashes of the ids in rising order, and the ordinal that each belongs to

The tables are bare little-endian numbers and not .npy: NumPy reads the header of those as Python source, which CPython
3.11 cannot do in two threads at once (python/cpython#106905), and threads do open one index at once.

An ordinal is a document's place in the corpus, from 0.
"""

import mmap
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from jaxsearchrl.search.contract import Document


@dataclass
class DuplicateId(Exception):
    """Two documents of a corpus have one id; `first` and `again` are their ordinals."""

    id: str
    first: int
    again: int


def write_store(folder: Path, documents: Iterable[Document]) -> int:
    """Writes the four files and returns the number of documents, N. Memory: 32 bytes a document, 48 at the end.

    Raises DuplicateId.
    """
    starts, id_starts, title_bytes, hashes = (array("Q") for _ in range(4))
    with (folder / "documents.bin").open("wb") as texts, (folder / "ids.bin").open("wb") as ids:
        text_end, id_end = 0, 0
        for document in documents:
            title, body, name = document.title.encode(), document.text.encode(), document.id.encode()
            starts.append(text_end)
            id_starts.append(id_end)
            title_bytes.append(len(title))
            hashes.append(_hash(document.id))
            text_end += texts.write(b"%b\n%b\n" % (title, body))
            id_end += ids.write(name)
        starts.append(text_end)
        id_starts.append(id_end)
        title_bytes.append(0)
    with (folder / "table.bin").open("wb") as table:
        for column in (starts, id_starts, title_bytes):
            np.asarray(column, "<u8").tofile(table)
    values = np.asarray(hashes, "<u8")
    if not len(values):
        return 0
    order = np.argsort(values, kind="stable").astype("<u8")
    values = values[order]
    with (folder / "id_table.bin").open("wb") as table:
        values.tofile(table)
        order.tofile(table)
    _check_unique(DocumentStore(folder), values, order)
    return len(values)


def _check_unique(store: "DocumentStore", values: np.ndarray, order: np.ndarray) -> None:
    """values: the ids' hashes in rising order; order: their ordinals, those of one hash rising."""
    for place in np.flatnonzero(values[1:] == values[:-1]):
        again = int(order[place + 1])
        for first in map(int, order[np.searchsorted(values, values[place]) : place + 1]):
            if store.id(first) == store.id(again):
                raise DuplicateId(store.id(again), first, again)


class DocumentStore:
    """The documents of a folder that `write_store` filled. Immutable, so any number of threads may read.

    Raises OSError or ValueError for files that are missing or not whole.
    """

    def __init__(self, folder: Path):
        self._starts, self._id_starts, self._title_bytes = _numbers(folder / "table.bin", 3)
        self._hashes, self._ordinals = _numbers(folder / "id_table.bin", 2)
        if len(self._starts) != len(self) + 1:
            raise ValueError(f"table.bin has {len(self._starts) - 1} documents and id_table.bin {len(self)}")
        self._documents = _map(folder / "documents.bin", int(self._starts[-1]))
        self._ids = _map(folder / "ids.bin", int(self._id_starts[-1]))

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def size(self) -> int:
        """Bytes of all titles and texts, with a newline behind each."""
        return int(self._starts[-1])

    def span(self, first: int, stop: int) -> int:
        """Bytes of the documents [first, stop)."""
        return int(self._starts[stop] - self._starts[first])

    def id(self, ordinal: int) -> str:
        """The id of a document."""
        return self._ids[int(self._id_starts[ordinal]) : int(self._id_starts[ordinal + 1])].decode()

    def ordinal(self, document_id: str) -> int | None:
        """Where the document of this id stands, None for an unknown id."""
        key = np.uint64(_hash(document_id))
        place = int(np.searchsorted(self._hashes, key))
        while place < len(self) and self._hashes[place] == key:
            ordinal = int(self._ordinals[place])
            if self.id(ordinal) == document_id:
                return ordinal
            place += 1
        return None

    def document(self, ordinal: int) -> Document:
        """The document, as the corpus gave it."""
        body = self.body(ordinal)
        cut = int(self._title_bytes[ordinal])
        return Document(self.id(ordinal), body[:cut].decode(), body[cut + 1 :].decode())

    def body(self, ordinal: int) -> bytes:
        """Title, newline, text of one document, UTF-8."""
        return self._documents[int(self._starts[ordinal]) : int(self._starts[ordinal + 1]) - 1]

    def block(self, first: int, stop: int) -> tuple[bytes, list[int]]:
        """The bodies of the documents [first, stop), a newline after each; and where each starts, the end included."""
        starts = self._starts[first : stop + 1]
        return self._documents[int(starts[0]) : int(starts[-1])], (starts - starts[0]).tolist()

    def blocks(self, size: int) -> list[int]:
        """Ordinals that cut the corpus into runs of about `size` bytes, 0 and N included."""
        cuts = np.searchsorted(self._starts, np.arange(0, int(self._starts[-1]), size).astype(np.uint64))
        return [*np.unique(cuts[cuts < len(self)]).tolist(), len(self)]


def _hash(document_id: str) -> int:
    # "replace": an id that a model made up may hold a lone surrogate; it must be unknown, not an error.
    return int.from_bytes(blake2b(document_id.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def _numbers(path: Path, rows: int) -> np.ndarray:
    return np.asarray(np.memmap(path, "<u8", "r")).reshape(rows, -1)


def _map(path: Path, size: int) -> mmap.mmap:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if len(mapped) != size:  # an interrupted copy: slices beyond its end would be empty documents
        raise ValueError(f"{path.name} has {len(mapped)} bytes instead of {size}")
    return mapped
