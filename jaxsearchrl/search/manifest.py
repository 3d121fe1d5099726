"""What an index was made from, and whether its corpus is still that."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.search import words
from jaxsearchrl.search.corpus_files import CorpusFile, find_files
from jaxsearchrl.search.options import IndexOptions

FORMAT = 3


@dataclass(frozen=True)
class FileState:
    """A file of the corpus as it was read. `mtime_ns` and `size` (bytes) are a cheap sign that it is the same still."""

    name: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """engine: the version of tantivy that wrote the terms. bytes: of titles and texts together."""

    format: int
    analyser: str
    engine: str
    options: IndexOptions
    documents: int
    bytes: int
    files: tuple[FileState, ...]
    fingerprint: str

    def write(self, folder: Path) -> None:
        """As manifest.json, onto the disk."""
        with (folder / "manifest.json").open("w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self), indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())


def make_manifest(options: IndexOptions, documents: int, size: int, files: Sequence[FileState], kind: str) -> Manifest:
    """kind: of the corpus's files. Text files' names are in the fingerprint, for they are in the ids."""
    content = [(file.name if kind == "text" else "", file.sha256) for file in files]
    recipe = json.dumps([FORMAT, words.ANALYSER, asdict(options), content])
    return Manifest(
        format=FORMAT,
        analyser=words.ANALYSER,
        engine=f"tantivy {version('tantivy')}",
        options=options,
        documents=documents,
        bytes=size,
        files=tuple(files),
        fingerprint=hashlib.sha256(recipe.encode("utf-8", "surrogateescape")).hexdigest(),
    )


def read_manifest(folder: Path) -> Manifest:
    """Raises UserError when the folder is no index, or one of another version of this program."""
    path = folder / "manifest.json"
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (fields["format"], fields["analyser"]) != (FORMAT, words.ANALYSER):
            raise UserError(f"{folder} was built by another version of this program; delete the folder to rebuild it")
        fields["options"] = IndexOptions(**fields["options"])
        fields["files"] = tuple(FileState(**file) for file in fields["files"])
        return Manifest(**fields)
    except FileNotFoundError:
        raise UserError(f"{folder} is not a search index (no manifest.json); name another index folder") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}); delete {folder} to rebuild it") from error


def check_unchanged(folder: Path, corpus: Path) -> None:
    """Raises UserError when the index was not built from what the corpus holds now."""
    manifest = read_manifest(folder)
    if not is_unchanged(manifest, corpus):
        raise UserError(
            f"{corpus} is not what the index {folder} was built from ({manifest.documents} documents): "
            "delete that folder to rebuild it, name another index folder, or put the corpus back"
        )


def is_unchanged(manifest: Manifest, corpus: Path) -> bool:
    """Whether the files have their sizes and times, or, where only times differ, their bytes."""
    files, _ = find_files(corpus)
    single = corpus.is_file()  # its name may change
    if len(files) != len(manifest.files):
        return False
    for file, then in zip(files, manifest.files, strict=True):
        now = file.path.stat()
        if (not single and file.name != then.name) or now.st_size != then.size:
            return False
        if now.st_mtime_ns != then.mtime_ns and _sha256(file) != then.sha256:
            return False
    return True


def _sha256(file: CorpusFile) -> str:
    with file.path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
