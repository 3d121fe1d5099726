"""How the searches of a step went: counted where they happen, by any number of threads, and taken once a step."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class SearchCounters:
    """Counts since the last `take`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: list[float] = []

    def add(self, name: str) -> None:
        """One more of "retries", "rate_limited" (answers 429) or "cached"."""
        with self._lock:
            self._counts[name] += 1

    @contextmanager
    def search(self) -> Iterator[None]:
        """Counts the search that is made within, as a success or, when it raises, as an error."""
        started = time.monotonic()
        try:
            yield
        except BaseException:
            self.add("errors")
            raise
        seconds = time.monotonic() - started
        with self._lock:
            self._counts["success"] += 1
            self._seconds.append(seconds)

    def give_away(self) -> list[Any]:
        """All counts, as JSON has them, for another process's `give`; starts them anew."""
        with self._lock:
            counts, seconds = self._counts, self._seconds
            self._counts, self._seconds = Counter(), []
        return [counts, seconds]

    def give(self, counted: list[Any]) -> None:
        """Adds what was given away."""
        with self._lock:
            self._counts.update(counted[0])
            self._seconds += counted[1]

    def take(self) -> dict[str, float]:
        """The metrics since the last call, which starts them anew; empty when nothing was searched.

        search/success, search/errors        searches that the engine answered, and that it did not
        search/success_rate                  their share
        search/latency, search/latency_p95   seconds of a search that was answered, its retries included
        search/retries, search/rate_limited  requests that were made again; answers 429
        search/cached                        searches that were answered from the cache, in none of the above
        """
        counts, seconds = self.give_away()
        if not counts:
            return {}
        names = ("success", "errors", "retries", "rate_limited", "cached")
        metrics = {f"search/{name}": float(counts[name]) for name in names}
        if asked := counts["success"] + counts["errors"]:
            metrics["search/success_rate"] = counts["success"] / asked
        if seconds:
            metrics["search/latency"] = float(np.mean(seconds))
            metrics["search/latency_p95"] = float(np.percentile(seconds, 95))
        return metrics
