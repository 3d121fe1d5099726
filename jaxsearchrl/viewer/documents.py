"""The documents of a run's corpus, read from the search index that training built beside it."""

from pathlib import Path

from jaxsearchrl.data.assets import cache_dir
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.store import DocumentStore


class Documents:
    """Documents by id; there are none where the index does not lie on this machine."""

    def __init__(self, corpus: str, index_dir: str) -> None:
        self._store: DocumentStore | None = None
        for folder in _folders(corpus, index_dir):
            try:
                self._store = DocumentStore(folder)
                return
            except (OSError, ValueError):
                continue

    def read(self, document_id: str) -> Document | None:
        """The document, None where it is unknown or cannot be had."""
        ordinal = self._store.ordinal(document_id) if self._store else None
        return None if ordinal is None or self._store is None else self._store.document(ordinal)


def _folders(corpus: str, index_dir: str) -> list[Path]:
    """Where the index may lie. "demo" is the demo's corpus in the cache folder, which is not fetched here."""
    if index_dir:
        return [Path(index_dir)]
    if corpus == "demo":
        return sorted(cache_dir().glob("demo-*/corpus.jsonl.index"), reverse=True)
    return [Path(f"{corpus}.index")] if corpus else []
