"""Reads a corpus: JSON lines, one document each, checked as they stream by.

{"id": "007", "title": "Brooms", "text": "Fast ones."}          `_id` is another spelling of `id`
{"id": "007", "contents": "\\"Brooms\\"\\nFast ones."}              the quoted first line is the title
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contents import split_contents
from jaxsearchrl.search.contract import Document
from jaxsearchrl.strict_json import read_objects
from jaxsearchrl.text import well_formed

MAX_ID_BYTES = 512

_WANTED = 'each line needs "id" (or "_id") and "text" (or "contents"); "title" is optional'


def read_corpus(path: Path, on_line: Callable[[bytes], object]) -> Iterator[tuple[int, Document]]:
    """Yields (line number from 1, document) in file order; blank lines are passed over.

    on_line: called with the bytes of every line, blank ones included (for a hash, for progress).
    Raises UserError naming file, line, what was found and what is wanted.
    """
    try:
        for number, row in read_objects(path, on_line):
            yield number, _document(row, f"{path}:{number}")
    except OSError as error:
        raise UserError(f"{path}: cannot read the corpus ({error.strerror})") from error


def _document(row: Mapping[str, Any], where: str) -> Document:
    document_id = _id(row, where)
    if "text" in row:
        return Document(document_id, _string(row, "title", where), _string(row, "text", where))
    if "contents" in row:
        title, text = split_contents(_string(row, "contents", where))
        return Document(document_id, _string(row, "title", where) or title, text)
    raise _missing("text", row, where)


def _id(row: Mapping[str, Any], where: str) -> str:
    if "id" in row and "_id" in row:
        raise UserError(f'{where}: both "id" and "_id"; they are two spellings of one key, keep one of them')
    key = "id" if "id" in row else "_id"
    if key not in row:
        raise _missing("id", row, where)
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


def _missing(key: str, row: Mapping[str, Any], where: str) -> UserError:
    found = ", ".join(json.dumps(name) for name in row) or "none"
    return UserError(f'{where}: no "{key}"; found the keys {found}; {_WANTED}')
