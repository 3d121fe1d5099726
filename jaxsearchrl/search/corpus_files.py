"""Reads a corpus, checked as it streams by: files of rows, or text files that are cut into chunks.

Rows are JSON lines, or the columns of a Parquet file:

{"id": "007", "title": "Brooms", "text": "Fast ones."}          `_id` is another spelling of `id`
{"id": "007", "contents": "\\"Brooms\\"\\nFast ones."}              the quoted first line is the title
{"chunk_id": "0000320193-24-000081_7", "document_text": "Company: …", "metadata_json": "{…}"}       see filings.py

A text file notes/a.md becomes the documents notes/a.md#1, notes/a.md#2, …
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.raw_rows import OnBytes, read_rows
from jaxsearchrl.search import filings, text_chunks
from jaxsearchrl.search.contents import split_contents
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.text import well_formed

MAX_ID_BYTES = 512

KINDS = {
    "JSON lines": (".jsonl", ".jsonl.gz", ".jsonl.zst"),
    "Parquet": (".parquet",),
    "text": (".md", ".txt"),
}
_IDS = ("id", "_id", "chunk_id")
_TEXTS = ("text", "contents", "document_text")


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus. name: its path within the corpus's folder, with / between the parts."""

    path: Path
    name: str

    @property
    def kind(self) -> str:
        """A key of KINDS; a single file with another ending holds JSON lines."""
        return _kind(self.name) or "JSON lines"


def find_files(corpus: Path) -> tuple[list[CorpusFile], list[str]]:
    """A corpus's files in the order of their names, and the names of those in its folder that are of no known kind.

    corpus: a file, or a folder with files of one kind, also in folders below; hidden ones (.name) are not looked at.
    Raises UserError when there is none, or more than one kind.
    """
    if corpus.is_file():
        return [CorpusFile(corpus, corpus.name)], []
    if not corpus.is_dir():
        raise UserError(f"{corpus}: no such corpus file or folder")
    try:
        names = sorted(_names(corpus), key=lambda name: PurePosixPath(name).parts)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot read the corpus ({error.strerror})") from error
    files = [CorpusFile(corpus / name, name) for name in names if _kind(name)]
    examples = {file.kind: file.name for file in reversed(files)}
    wanted = ", ".join(ending for endings in KINDS.values() for ending in endings)
    if not files:
        raise UserError(f"{corpus}: no file of a corpus in it ({wanted})")
    if len(examples) > 1:
        found = ", ".join(f"{kind} ({name})" for kind, name in sorted(examples.items()))
        raise UserError(f"{corpus}: files of more than one kind: {found}; put those of one kind into a folder")
    return files, [name for name in names if not _kind(name)]


def read_file(
    file: CorpusFile, options: IndexOptions, on_bytes: OnBytes = lambda raw: None
) -> Iterator[tuple[str, Document]]:
    """Yields (place, document) in file order; the place is file and line, row or chunk, from 1.

    on_bytes: called with the file's bytes in order, all of them once the documents have ended.
    Raises UserError naming the place, what was found and what is wanted.
    """
    if file.kind == "text":
        yield from _chunks(file, options, on_bytes)
    else:
        for where, row in read_rows(file.path, (_IDS, _TEXTS), ("title", "metadata_json"), on_bytes):
            yield where, _document(row, where)


def _names(folder: Path) -> Iterator[str]:
    def stop(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in names if not name.startswith("."))


def _kind(name: str) -> str:
    return next((kind for kind, endings in KINDS.items() if name.lower().endswith(endings)), "")


def _chunks(file: CorpusFile, options: IndexOptions, on_bytes: OnBytes) -> Iterator[tuple[str, Document]]:
    try:
        raw = file.path.read_bytes()
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file.path}: not UTF-8 text (byte {error.start + 1}); save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{file.path}: cannot read the corpus ({error.strerror})") from error
    on_bytes(raw)
    heading = text_chunks.first_heading(text) if file.name.lower().endswith(".md") else ""
    title = heading or PurePosixPath(file.name).stem
    for number, chunk in enumerate(text_chunks.chunks(text, options.chunk_words, options.chunk_overlap), start=1):
        where = f"{file.path}: chunk {number}"
        yield where, Document(_id({"id": f"{file.name}#{number}"}, where), title, chunk)


def _document(row: Mapping[str, Any], where: str) -> Document:
    document_id, title = _id(row, where), _string(row, "title", where)
    if "text" in row:
        return Document(document_id, title, _string(row, "text", where))
    if "contents" in row:
        quoted, text = split_contents(_string(row, "contents", where))
        return Document(document_id, title or quoted, text)
    text = _string(row, "document_text", where)
    return Document(document_id, title or filings.title(text, row.get("metadata_json"), where), text)


def _id(row: Mapping[str, Any], where: str) -> str:
    if "id" in row and "_id" in row:
        raise UserError(f'{where}: both "id" and "_id"; they are two spellings of one key, keep one of them')
    key = next(key for key in _IDS if key in row)
    value = row[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise UserError(f'{where}: "{key}" is the number {value}; ids are strings, write "{value}"')
    if not isinstance(value, str):
        raise UserError(f'{where}: "{key}" must be a string, found {type(value).__name__}')
    if not value:
        raise UserError(f'{where}: "{key}" is empty; every document needs its own id')
    if value != well_formed(value):
        raise UserError(f'{where}: "{key}" {value!a} is not valid Unicode (a lone surrogate)')
    if len(value.encode()) > MAX_ID_BYTES:
        raise UserError(f'{where}: "{key}" has {len(value.encode())} bytes; at most {MAX_ID_BYTES} are allowed')
    return value


def _string(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if value is None and key == "title":
        return ""
    if not isinstance(value, str):
        raise UserError(f'{where}: "{key}" must be a string, found {type(value).__name__}')
    return well_formed(value)
