"""What the rest of the program knows of search. Implementations are thread-safe; ids are strings and stay as given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_PATTERN_CHARS = 160
"""How long a grep pattern may be."""


@dataclass(frozen=True)
class Document:
    """One retrievable unit (a passage or chunk)."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A document found by a query. `score` is the engine's (BM25 for the local index); `snippet` shows the match."""

    document: Document
    score: float
    snippet: str


class BadPattern(ValueError):
    """A grep pattern that RE2 refuses, or that takes too long; the message is written for the model."""


class Retriever(Protocol):
    """Ranked search. Raises InfrastructureError when the engine cannot answer; an empty result is always an answer."""

    @property
    def fingerprint(self) -> str:
        """Names what results depend on, as far as that is known here."""
        ...

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """The best k documents, best first; a query without searchable words finds nothing."""
        ...


class Corpus(Protocol):
    """Exact access, local only."""

    def grep(self, pattern: str, k: int, *, case_sensitive: bool = False, skip: int = 0) -> Sequence[Hit]:
        """The first k documents in corpus order whose title + newline + text match, but for the first `skip` of them.

        Raises BadPattern.
        """
        ...

    def read(self, document_id: str) -> Document | None:
        """The document, or None for an unknown id."""
        ...
