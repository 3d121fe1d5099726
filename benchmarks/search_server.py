"""What the search server adds to a search, on one machine: python -m benchmarks.search_server [--documents 20000]

A corpus of seeded Zipfian words is indexed and served by another process; the same queries are then searched directly
and through HTTP, by one client and by several at once.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.search.index import LocalIndex, open_or_build
from jaxsearchrl.search.remote.http import Http
from jaxsearchrl.search.remote.search_r1 import SearchR1Engine

WORDS, WORDS_A_DOCUMENT, WORDS_A_QUERY = 20_000, 300, 4


def write_corpus(path: Path, documents: int) -> None:
    """Documents of about 2 kB."""
    generator = np.random.default_rng(0)
    with path.open("w") as file:
        for number in range(documents):
            ranks = np.minimum(generator.zipf(1.1, WORDS_A_DOCUMENT), WORDS)
            text = " ".join(f"w{rank:05d}" for rank in ranks)
            file.write(json.dumps({"id": f"d{number}", "title": f"Document {number}", "text": text}) + "\n")


def seconds_of(search: Callable[[str, int], object], queries: Sequence[str], clients: int) -> tuple[list[float], float]:
    """Seconds of each query, and of all; so many clients ask at once."""

    def one(query: str) -> float:
        started = time.perf_counter()
        search(query, 3)
        return time.perf_counter() - started

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        each = list(pool.map(one, queries))
    return each, time.perf_counter() - started


def measure(index: LocalIndex, url: str, queries: Sequence[str]) -> list[dict[str, float]]:
    """A row for each number of clients: milliseconds and queries a second, directly and served."""
    engine = SearchR1Engine(Http(30, 1, SearchCounters()), url)
    rows = []
    for clients in (1, 8):
        row: dict[str, float] = {"clients": clients}
        for name, search in (("direct", index.search), ("served", engine.search)):
            seconds_of(search, queries[:50], clients)  # connections and caches are warm
            each, total = seconds_of(search, queries, clients)
            row[f"{name} p50 ms"], row[f"{name} p99 ms"] = (1000 * np.percentile(each, [50, 99])).tolist()
            row[f"{name} queries/s"] = len(queries) / total
        row["added p50 ms"] = row["served p50 ms"] - row["direct p50 ms"]
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Prints a line of JSON for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=1000)
    options = parser.parse_args(arguments)
    generator = random.Random(0)
    queries = [
        " ".join(f"w{generator.randrange(5, WORDS):05d}" for _ in range(WORDS_A_QUERY)) for _ in range(options.queries)
    ]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus.jsonl")
        write_corpus(corpus, options.documents)
        index = open_or_build(corpus, snippet_chars=0)  # as the server does
        command = [sys.executable, "-m", "jaxsearchrl.search", "serve", str(corpus), "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
            assert server.stdout is not None
            try:
                rows = measure(index, server.stdout.readline().split()[-1], queries)
            finally:
                server.terminate()
    for row in rows:
        print(json.dumps({name: round(value, 3) for name, value in row.items()}))
    return rows


if __name__ == "__main__":
    main()
