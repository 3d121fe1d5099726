"""Builds the index folder of a corpus, all or nothing.

    manifest.json   see manifest.py
    store files     see store.py
    terms/          see terms.py
    grams.bin       see grams.py

The folder is filled under another name and renamed when complete, so that a killed build is never trusted. What
it had finished is: the next build of the same corpus keeps the document store, once whole, and the runs of terms.
"""

import fcntl
import hashlib
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.corpus_files import CorpusFile, find_files, read_file
from jaxsearchrl.search.grams import write_grams
from jaxsearchrl.search.manifest import FileState, is_unchanged, make_manifest, read_manifest
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.search.store import DocumentStore, DuplicateId, write_store
from jaxsearchrl.search.terms import cores, flush, write_terms


def is_absent(folder: Path) -> bool:
    """Whether an index may be built here: there is nothing yet, or an empty folder."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def build(corpus: Path, folder: Path, options: IndexOptions) -> None:
    """Makes the index folder, unless another process has made it meanwhile. Raises UserError for a bad corpus."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_builder(folder):
            if is_absent(folder):
                try:
                    # Whoever left a half-made one is dead: we hold the lock.
                    if not _has_store(unfinished, corpus, options):
                        shutil.rmtree(unfinished, ignore_errors=True)
                        unfinished.mkdir()
                        _write_store(unfinished, corpus, options)
                    store = DocumentStore(unfinished)
                    write_terms(unfinished / "terms", store, options)
                    write_grams(unfinished, store, cores())
                except Exception:
                    shutil.rmtree(unfinished, ignore_errors=True)
                    raise
                os.rename(unfinished, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot write the index ({error}); name another index folder") from error


def _has_store(folder: Path, corpus: Path, options: IndexOptions) -> bool:
    """Whether an earlier build has left the whole store of this corpus: its manifest is written last."""
    try:
        manifest = read_manifest(folder)
    except UserError:
        return False
    return manifest.options == options and is_unchanged(manifest, corpus)


def _write_store(folder: Path, corpus: Path, options: IndexOptions) -> None:
    files, others = find_files(corpus)
    if others:
        names = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        print(f"{corpus}: {len(others)} files of other kinds are left out ({names})", file=sys.stderr, flush=True)
    before = [_state(file) for file in files]
    hashes: list[str] = []
    size = sum(size for size, _ in before)
    with tqdm(total=size, unit="B", unit_scale=True, desc=f"reading {corpus.name}", delay=1) as bar:
        try:
            count = write_store(folder, _documents(files, options, hashes, bar))
        except DuplicateId as error:
            first, again = (_place(files, options, ordinal) for ordinal in (error.first, error.again))
            raise UserError(f"{again}: the id {error.id!a} is already that of {first}; ids must be unique") from None
    if not count:
        raise UserError(f"{corpus}: the corpus has no documents")
    if (files, before) != (find_files(corpus)[0], [_state(file) for file in files]):
        raise UserError(f"{corpus} changed while it was read; build again when it is complete")
    states = [FileState(file.name, *state, sha256) for file, state, sha256 in zip(files, before, hashes, strict=True)]
    flush(folder)
    make_manifest(options, count, DocumentStore(folder).size, states, files[0].kind).write(folder)


def _documents(files: list[CorpusFile], options: IndexOptions, hashes: list[str], bar: tqdm) -> Iterator[Document]:
    """All documents in corpus order. Each file's SHA-256 is added to `hashes` when its documents have ended."""
    for file in files:
        digest = hashlib.sha256()

        def on_bytes(raw: bytes, digest=digest) -> None:
            digest.update(raw)
            bar.update(len(raw))

        for _, document in read_file(file, options, on_bytes):
            yield document
        hashes.append(digest.hexdigest())


def _place(files: list[CorpusFile], options: IndexOptions, ordinal: int) -> str:
    """Where a document stands, by reading the corpus again: only an error needs it."""
    places = (place for file in files for place, _ in read_file(file, options))
    return next(itertools.islice(places, ordinal, None))


def _state(file: CorpusFile) -> tuple[int, int]:
    stat = file.path.stat()
    return stat.st_size, stat.st_mtime_ns


@contextmanager
def _only_builder(folder: Path) -> Iterator[None]:
    """Waits until nobody else on this machine builds the folder. The lock ends with its process, however that ends."""
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
