"""What building and asking an index costs, on generated text; bm25s and Lucene beside it where they are installed.

The text is seeded. Words follow Zipf's law, the frequent ones being short, and every chunk names an entity that few
others name. A grep pattern asks for such entities, so that no scan ends early. Times are wall times.
"""

import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxsearchrl.search.bench_others import others
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.index import LocalIndex, open_or_build
from jaxsearchrl.search.terms import cores

VOCABULARY = 200_000
ENTITIES = 50_000
THREADS = (1, 8, 64)
QUERIES = 256
PATTERNS = 12  # of each kind
CHUNK_BYTES = 2000

Figures = dict[str, float]


@dataclass(frozen=True)
class Words:
    """words: by falling frequency. entities: two-word names."""

    words: np.ndarray
    entities: tuple[str, ...]
    cumulative: np.ndarray


def make_words(seed: int) -> Words:
    """The vocabulary of the generated text."""
    rng = np.random.default_rng(seed)
    syllables = [first + second for first in "bcdfghjklmnprstvwz" for second in ("a", "e", "i", "o", "u", "en", "or")]
    seen: dict[str, None] = {}
    draws = rng.integers(0, len(syllables), (2 * VOCABULARY, 6)).tolist()
    for row in draws:
        # One syllable or two at first, more as the short words are taken.
        count = 1 + int(math.log10(1 + len(seen)) * 0.7) + row[-1] % 2
        seen["".join(syllables[n] for n in row[:count])] = None
    words = list(seen)[:VOCABULARY]
    names = [word.capitalize() for word in words[VOCABULARY // 2 :]]
    entities = tuple(f"{names[n]} {names[-1 - n]}" for n in range(ENTITIES))
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    return Words(np.array(words, object), entities, np.cumsum(frequency) / frequency.sum())


def generate(words: Words, chunks: int, seed: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Document]:
    """Chunks of about chunk_bytes, ten of one source each."""
    rng = np.random.default_rng(seed)
    for first in range(0, chunks, 1000):
        drawn = words.words[
            np.searchsorted(words.cumulative, rng.random((min(1000, chunks - first), chunk_bytes // 5)))
        ]
        named = rng.integers(0, ENTITIES, len(drawn))
        for number, (row, entity) in enumerate(zip(drawn.tolist(), named.tolist(), strict=True), start=first):
            name = words.entities[entity]
            text = " ".join(row)[: chunk_bytes - len(name) - 2] + f" {name}."
            yield Document(f"source-{number // 10}_{number % 10}", f"{name} {number % 97}", text)


def run(chunks: int, chunk_bytes: int, seed: int, folder: str | None) -> Figures:
    """Generates a corpus in `folder` (None: the system's temporary one), measures, and removes it."""
    words = make_words(seed)
    work = Path(tempfile.mkdtemp(prefix="search-bench-", dir=folder))
    try:
        corpus = work / "corpus.jsonl"
        with corpus.open("w", encoding="utf-8") as file:
            for document in generate(words, chunks, seed, chunk_bytes):
                file.write(json.dumps({"id": document.id, "title": document.title, "text": document.text}) + "\n")
        with _peak_anonymous() as peak, _timed() as build:
            index = open_or_build(corpus)
        size = index.manifest.bytes
        on_disk = sum(path.stat().st_size for path in index.folder.rglob("*") if path.is_file())
        figures = {
            "chunks": chunks,
            "text MB": size / 1e6,
            "build s": build.seconds,
            "build MB/s": size / 1e6 / build.seconds,
            "build CPU s": build.cpu_seconds,
            "index MB": on_disk / 1e6,
            "peak anonymous MB": peak.megabytes,
        }
        rng = np.random.default_rng(seed + 1)
        queries = [_query(index, rng) for _ in range(QUERIES)]
        figures |= _searches("search", lambda query: index.search(query, 10), queries)
        plain = LocalIndex(index.folder, snippet_chars=0)
        figures |= _searches("search without snippets", lambda query: plain.search(query, 10), queries)
        figures |= _greps(index, words, rng)
        ids = [f"source-{n // 10}_{n % 10}" for n in rng.integers(0, chunks, QUERIES)]
        figures["read p50 ms"] = _percentiles(_latencies(index.read, ids))[0]
        for engine in others(lambda: generate(words, chunks, seed, chunk_bytes), size, work, cores()):
            figures[f"{engine.name} build MB/s"] = size / 1e6 / engine.seconds
            figures |= _searches(engine.name, engine.search, queries, engine.search_all)
        return figures
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _query(index: LocalIndex, rng: np.random.Generator) -> str:
    """Five words of one document, as frequent as its words are, so that some are in most documents."""
    found = index.document(int(rng.integers(0, index.size)))
    return " ".join(rng.choice(found.text.split(), 5).tolist())


def _searches(
    name: str,
    search: Callable[[str], object],
    queries: Sequence[str],
    search_all: Callable[[Sequence[str], int], object] | None = None,
) -> Figures:
    search(queries[0])
    p50, p99 = _percentiles(_latencies(search, queries))
    figures = {f"{name} p50 ms": p50, f"{name} p99 ms": p99}
    for threads in THREADS:
        with ThreadPoolExecutor(threads) as pool, _timed() as cost:
            if search_all:
                search_all(queries, threads)
            else:
                list(pool.map(search, queries))
        figures[f"{name} queries/s, {threads} threads"] = len(queries) / cost.seconds
    return figures


def _greps(index: LocalIndex, words: Words, rng: np.random.Generator) -> Figures:
    kinds: dict[str, Callable[[list[str]], str]] = {
        "literal": lambda names: names[0],
        "anchored": lambda names: rf"^{names[0]} \d+$",
        "alternation": lambda names: "|".join(names),
        "case-insensitive": lambda names: names[0].lower(),
    }
    figures = {}
    for kind, make in kinds.items():
        names = [[words.entities[n] for n in rng.integers(0, ENTITIES, 3)] for _ in range(PATTERNS)]
        sensitive = kind != "case-insensitive"
        times = _latencies(lambda pattern, s=sensitive: index.grep(pattern, 10, case_sensitive=s), map(make, names))
        p50, p99 = _percentiles(times)
        figures |= {f"grep {kind} p50 ms": p50, f"grep {kind} p99 ms": p99}
    return figures


def _latencies(call: Callable[[str], object], arguments: "Sequence[str] | map[str]") -> list[float]:
    times = []
    for argument in arguments:
        with _timed() as cost:
            call(argument)
        times.append(1000 * cost.seconds)
    return times


def _percentiles(times: Sequence[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(times, (50, 99))
    return float(p50), float(p99)


@dataclass
class _Cost:
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    megabytes: float = 0.0


@contextmanager
def _timed() -> Iterator[_Cost]:
    cost = _Cost()
    seconds, cpu_seconds = time.perf_counter(), time.process_time()
    yield cost
    cost.seconds, cost.cpu_seconds = time.perf_counter() - seconds, time.process_time() - cpu_seconds


@contextmanager
def _peak_anonymous() -> Iterator[_Cost]:
    """The most memory that is not a mapped file, looked at 20 times a second; 0 where /proc does not say."""
    cost, done = _Cost(), threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            cost.megabytes = max(cost.megabytes, _anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield cost
    done.set()
    watcher.join()


def _anonymous() -> float:
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000


def machine() -> str:
    """What must be known to compare figures."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
