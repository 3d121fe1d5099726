"""Reads a part of a document, with its neighbours where a source was cut into chunks."""

import re
from dataclasses import dataclass

from jaxsearchrl.search.contract import Corpus, Document

# notes/a.md#3, 0000320193-24-000081_12: a chunk's number at the end, without leading zeros.
_CHUNK = re.compile(r"(.+[#_])(0|[1-9]\d{0,17})", re.DOTALL)


@dataclass(frozen=True)
class Reading:
    """A piece of text of one source.

    ids: the documents whose texts, a line break between them, are `total` characters long; `text` is that from
    character `start` on (from 0).
    """

    ids: tuple[str, ...]
    title: str
    text: str
    start: int
    total: int

    @property
    def truncated(self) -> bool:
        """Whether there is more than `text`."""
        return len(self.text) < self.total

    @property
    def extent(self) -> str:
        """What is shown, in words."""
        return f"truncated: characters {self.start} to {self.start + len(self.text)} of {self.total}"


def read_window(
    corpus: Corpus, document_id: str, *, around: int = 0, start: int = 0, size: int | None = None
) -> Reading | None:
    """At most `size` characters (None: all) of a document, from `start` on; None for an unknown id.

    around: so many chunks of the same source come before and after it, where the corpus has them without a gap.
    """
    document = corpus.read(document_id)
    if document is None:
        return None
    before, after = (_neighbours(corpus, document_id, step, around) for step in (-1, 1))
    documents = [*reversed(before), document, *after]
    text = "\n".join(document.text for document in documents)
    start = max(0, min(start, len(text)))
    stop = len(text) if size is None else start + max(0, size)
    return Reading(tuple(found.id for found in documents), document.title, text[start:stop], start, len(text))


def split_chunk_id(document_id: str) -> tuple[str, int] | None:
    """What the ids of a source's chunks begin with, and this one's number; None for an id without a number."""
    chunk = _CHUNK.fullmatch(document_id)
    return (chunk[1], int(chunk[2])) if chunk else None


def _neighbours(corpus: Corpus, document_id: str, step: int, count: int) -> list[Document]:
    chunk = split_chunk_id(document_id)
    found: list[Document] = []
    while chunk and len(found) < count:
        number = chunk[1] + step * (len(found) + 1)
        document = corpus.read(f"{chunk[0]}{number}") if number >= 0 else None
        if document is None:
            break
        found.append(document)
    return found
