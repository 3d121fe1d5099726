"""An engine on another machine as a Retriever: what is asked and answered, counted and kept."""

import logging
from collections.abc import Sequence
from typing import Protocol

from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.contract import Hit
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.search.remote.cache import ResultCache
from jaxsearchrl.text import well_formed

MAX_QUERY_CHARS = 2000
"""What of a query is sent: engines refuse very long ones, and what a model writes must not look like their failure."""

_log = logging.getLogger(__name__)


class Engine(Protocol):
    """Thread-safe. Raises InfrastructureError, which names the address, for all that goes wrong."""

    def check(self) -> None:
        """Whether it can be searched, asked before a run."""
        ...

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """At most k documents, best first, for a query that `plain` made."""
        ...


class RemoteRetriever:
    """Implements `Retriever`. fingerprint: names the engine and where on its host it answers, not what it holds."""

    def __init__(self, engine: Engine, fingerprint: str, counters: SearchCounters, cache: ResultCache | None = None):
        self.fingerprint = fingerprint
        self._engine, self._counters, self._cache = engine, counters, cache

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """The engine's best k documents. None for a query without a letter or digit, which is not sent.

        Raises InfrastructureError; an empty result is always an answer.
        """
        query, k = plain(query), max(1, k)
        if not query:
            return []
        if self._cache is not None and (kept := self._cache.get(query, k)) is not None:
            self._counters.add("cached")
            return kept
        with self._counters.search():
            hits = self._engine.search(query, k)
        if self._cache is not None:
            self._cache.put(query, k, hits)
        return hits

    def check(self) -> None:
        """Asks once, so that an engine that cannot be used is known before a run starts.

        Raises UserError; with results in the cache only warns, as a repeated run may need nothing else.
        """
        try:
            self._engine.check()
        except InfrastructureError as error:
            if self._cache is not None and not self._cache.empty:
                _log.warning("%s; only searches that are in %s will be answered", error, self._cache.path)
            else:
                raise UserError(
                    f"task.retriever cannot be searched: {error}; start the server and wait until it answers, or "
                    "correct the settings"
                ) from error


def plain(query: str) -> str:
    """The words of a query in one line, without control characters, MAX_QUERY_CHARS at most; "" if there are none."""
    printable = "".join(character if character.isprintable() else " " for character in well_formed(query))
    text = " ".join(printable.split())
    if len(text) > MAX_QUERY_CHARS:
        cut = text[: MAX_QUERY_CHARS + 1].rfind(" ")
        text = text[: cut if cut > 0 else MAX_QUERY_CHARS]
    return text if any(character.isalnum() for character in text) else ""
