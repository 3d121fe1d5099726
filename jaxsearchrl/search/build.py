"""Builds the index folder of a corpus, all or nothing, and tells whether an index still belongs to its corpus.

    manifest.json   format, analyser, documents, the corpus file's size, time and SHA-256, and the fingerprint of it all
    store files     see store.py
    tantivy/        the inverted index

The folder is filled under another name and renamed when complete, so that a build that was killed is never trusted.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import tantivy
from tqdm import tqdm

from jaxsearchrl.errors import UserError
from jaxsearchrl.search import words
from jaxsearchrl.search.corpus_files import read_corpus
from jaxsearchrl.search.store import DocumentStore, write_store

FORMAT = 2
_HEAP_BYTES = 128_000_000


@dataclass(frozen=True)
class Manifest:
    """What an index was made from. `mtime_ns` and `size` (bytes) are a cheap sign that the corpus is the same file."""

    format: int
    analyser: str
    documents: int
    size: int
    mtime_ns: int
    sha256: str
    fingerprint: str


def fingerprint(sha256: str) -> str:
    """Names what a search depends on: the corpus's bytes, the analyser and the format (64 hex digits)."""
    return hashlib.sha256(f"{FORMAT}\0{words.ANALYSER}\0{sha256}".encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError when the folder is no index, or one of another version of this program."""
    path = folder / "manifest.json"
    try:
        fields = json.loads(path.read_text())
        if (fields["format"], fields["analyser"]) != (FORMAT, words.ANALYSER):
            raise UserError(f"{folder} was built by another version of this program; delete the folder to rebuild it")
        return Manifest(**fields)
    except FileNotFoundError:
        raise UserError(f"{folder} is not a search index (no manifest.json); name another index folder") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete {folder} to rebuild it") from error


def is_absent(folder: Path) -> bool:
    """Whether an index may be built here: there is nothing yet, or an empty folder."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def check_unchanged(folder: Path, corpus: Path) -> None:
    """Raises UserError when the index was not built from what the corpus file holds now."""
    manifest = read_manifest(folder)
    now = corpus.stat()
    if (now.st_size, now.st_mtime_ns) == (manifest.size, manifest.mtime_ns):
        return
    if now.st_size == manifest.size:
        with corpus.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == manifest.sha256:
                return
    raise UserError(
        f"{corpus} is not what the index {folder} was built from ({manifest.documents} documents): "
        "delete that folder to rebuild it, name another index folder, or put the corpus back"
    )


def build(corpus: Path, folder: Path) -> None:
    """Makes the index folder, unless another process has made it meanwhile. Raises UserError for a bad corpus."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_builder(folder):
            if is_absent(folder):
                # Whoever left a half-made one is dead: we hold the lock.
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                try:
                    _fill(unfinished, corpus)
                    _flush(unfinished)
                    os.rename(unfinished, folder)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot write the index ({error}); name another index folder") from error


def _fill(folder: Path, corpus: Path) -> None:
    before = corpus.stat()
    digest = hashlib.sha256()
    with tqdm(total=before.st_size, unit="B", unit_scale=True, desc=f"reading {corpus.name}", delay=1) as bar:

        def on_line(raw: bytes) -> None:
            digest.update(raw)
            bar.update(len(raw))

        documents = write_store(folder, corpus, read_corpus(corpus, on_line))
    after = corpus.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UserError(f"{corpus} changed while it was read; build again when it is complete")
    _write_terms(folder)
    sha256 = digest.hexdigest()
    manifest = Manifest(
        FORMAT, words.ANALYSER, documents, before.st_size, before.st_mtime_ns, sha256, fingerprint(sha256)
    )
    (folder / "manifest.json").write_text(json.dumps(asdict(manifest), indent=2) + "\n")


def _write_terms(folder: Path) -> None:
    store = DocumentStore(folder)
    (folder / "tantivy").mkdir()
    index = tantivy.Index(words.schema(), path=str(folder / "tantivy"))
    words.register(index)
    # One thread: the same corpus gives segments in the same order.
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    for ordinal in tqdm(range(len(store)), unit=" documents", desc="indexing", delay=1):
        source = store.document(ordinal)
        document = tantivy.Document()
        document.add_text("title", source.title)
        document.add_text("text", source.text)
        document.add_unsigned("ordinal", ordinal)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()


def _flush(folder: Path) -> None:
    """Onto the disk before the rename is, so that not even a power cut leaves a trusted half."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    """Waits until nobody else on this machine builds the folder. The lock ends with its process, however that ends."""
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
