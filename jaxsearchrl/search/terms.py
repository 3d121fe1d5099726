"""The inverted index: runs of the corpus, each a small tantivy index of its own, searched together as one.

    terms/00000/, terms/00001/, …

Where the corpus is cut depends on its size alone, each run is written by one thread, and nothing is merged. So the same
corpus gives the same scores, to the last bit, however many cores build it; and a run that is finished stays finished.
"""

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path

import tantivy
from tqdm import tqdm

from jaxsearchrl.search import words
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.search.store import DocumentStore

# A run's size in bytes of text: small ones keep all cores at work, few ones keep searches quick.
LEAST_RUN, GREATEST_RUN, RUNS = 16 << 20, 256 << 20, 4
# What a writer may hold, in bytes, before it begins another segment. A run of the greatest size needs less.
_HEAP_BYTES = 600_000_000
_STEP = 256  # documents between two looks at whether to stop


def write_terms(folder: Path, store: DocumentStore, options: IndexOptions) -> None:
    """Writes the runs that are not there yet, on all cores.

    Memory of each core: a run's terms, at most _HEAP_BYTES, and the 10,000 documents that tantivy lets wait.
    """
    stop = threading.Event()
    with (
        tqdm(total=store.size, unit="B", unit_scale=True, desc="indexing", delay=1) as bar,
        ThreadPoolExecutor(cores()) as pool,
    ):
        lock = threading.Lock()

        def progress(size: int) -> None:
            with lock:
                bar.update(size)
            if stop.is_set():
                raise InterruptedError

        def write(number: int, first: int, end: int) -> None:
            run = folder / f"{number:05}"
            if run.exists():
                progress(store.span(first, end))
            else:
                _write_run(run, store, first, end, options, progress)

        cuts = run_cuts(store)
        written = [pool.submit(write, number, *cut) for number, cut in enumerate(pairwise(cuts))]
        try:
            for run in wait(written, return_when=FIRST_EXCEPTION).done:
                run.result()
        except BaseException:  # also whoever stops the program: the other runs must not go on for minutes
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def run_cuts(store: DocumentStore) -> list[int]:
    """The ordinals between which the runs lie, 0 and N included."""
    return store.blocks(max(LEAST_RUN, min(GREATEST_RUN, store.size // RUNS)))


def open_terms(folder: Path) -> tuple[tantivy.Searcher, tantivy.Schema]:
    """Opens all runs as one index, by links from a temporary folder; nothing is written into `folder`.

    (tantivy makes a lock file even to read, and ours may be read-only.) Raises OSError or ValueError.
    """
    # tantivy's watching thread may make the lock file just while the folder is deleted: then an empty file stays.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as links:
        metas = []
        for run in sorted(folder.iterdir()):
            metas.append(json.loads((run / "meta.json").read_text()))
            for file in run.iterdir():
                if file.suffix not in (".lock", ".json"):
                    Path(links, file.name).symlink_to(file)
        if not metas:
            raise ValueError(f"{folder} is empty")
        segments = [segment for meta in metas for segment in meta["segments"]]
        Path(links, "meta.json").write_text(json.dumps(metas[0] | {"segments": segments}))
        index = tantivy.Index.open(links)
        index.config_reader("manual")
        # The searcher has every file open; the links are needed no more.
        return index.searcher(), index.schema


def _write_run(
    run: Path, store: DocumentStore, first: int, end: int, options: IndexOptions, progress: Callable[[int], None]
) -> None:
    partial = run.with_name(run.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    index = tantivy.Index(words.schema(), path=str(partial))
    words.register(index, options)
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    for start in range(first, end, _STEP):
        for ordinal in range(start, min(end, start + _STEP)):
            source = store.document(ordinal)
            document = tantivy.Document()
            for _ in range(options.title_weight):
                document.add_text("text", source.title)
            document.add_text("text", source.text)
            document.add_unsigned("ordinal", ordinal)
            writer.add_document(document)
        progress(store.span(start, min(end, start + _STEP)))
    writer.commit()
    writer.wait_merging_threads()
    flush(partial)
    os.rename(partial, run)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flush(folder: Path) -> None:
    """Onto the disk before a rename is, so that not even a power cut leaves a trusted half."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
