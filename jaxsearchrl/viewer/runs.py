"""The runs in a folder, and what lies in each."""

import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from jaxsearchrl.errors import UserError
from jaxsearchrl.run_folder import local_folder
from jaxsearchrl.telemetry.metrics_file import NAME, read_metrics
from jaxsearchrl.viewer.documents import Documents
from jaxsearchrl.viewer.record_file import Contents, RecordFile
from jaxsearchrl.viewer.tokens import TokenTexts

T = TypeVar("T")

_DEPTH = 4  # folders between the one that was named and a run


@dataclass(frozen=True)
class Place:
    """Where a file of records belongs."""

    split: str
    step: int

    @property
    def path(self) -> str:
        """As part of an address."""
        return f"{self.split}/{self.step}"


class Run:
    """A run folder. name: its path below the folder that was named. Nothing is kept that a run at work may change."""

    def __init__(self, folder: Path, name: str, base: str) -> None:
        self.folder, self.name, self.base = folder, name, base
        self._files: dict[Path, RecordFile] = {}
        self._derived: dict[Any, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def files(self) -> dict[Place, RecordFile]:
        """The files of records by place: training first, newest step first."""
        found: dict[Place, RecordFile] = {}
        for path in (self.folder / "rollouts").glob("*/step_*.jsonl*"):
            match = re.fullmatch(r"step_([0-9]{1,15})\.jsonl(\.gz)?", path.name)
            if match and path.is_file() and _inside(path, self.folder):
                with self._lock:
                    file = self._files.setdefault(path, RecordFile(path))
                found[Place(path.parent.name, int(match[1]))] = file
        return dict(sorted(found.items(), key=lambda item: (item[0].split != "train", item[0].split, -item[0].step)))

    def file(self, split: str, step: int) -> RecordFile:
        """Raises UserError naming what there is."""
        files = self.files()
        if (file := files.get(Place(split, step))) is None:
            there = ", ".join(place.path for place in list(files)[:20]) or "none"
            raise UserError(f"{self.name}: no records of {split}/{step}; recorded: {there}")
        return file

    def known(self) -> dict[Place, Contents]:
        """The contents of the files that have been read so far."""
        contents = {place: file.known() for place, file in self.files().items()}
        return {place: known for place, known in contents.items() if known is not None}

    def derived(self, make: Callable[[Mapping[Place, Contents]], T]) -> T:
        """What `make` makes of all that has been read so far, made again only when more has been."""
        known = self.known()
        with self._lock:
            if self._derived.get(make, (None,))[0] != known:
                self._derived[make] = (known, make(known))
            return self._derived[make][1]

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl. Raises UserError for a broken line."""
        rows = read_metrics(self.folder) if _inside(self.folder / NAME, self.folder) else []
        for number, row in enumerate(rows, start=1):
            for name, value in row.items():
                if type(value) is int and abs(value) > sys.float_info.max:
                    raise UserError(f"{self.folder / NAME}, line {number}: {name!r} is too large a number")
        return rows

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration; empty where there is none that can be read."""
        try:
            data = json.loads(self._text("config.json"))
        except (ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}

    def setting(self, section: str, key: str, kind: type[T]) -> T | None:
        """A value of the configuration, None where it has none of this kind."""
        values = self.config.get(section)
        value = values.get(key) if isinstance(values, dict) else None
        return value if type(value) is kind else None

    def report(self) -> str:
        """The run's report, "" before there is one."""
        return self._text("report.md")

    def saved(self) -> dict[int, list[str]]:
        """What was saved after each step: "adapter" and "full state"."""
        steps: dict[int, list[str]] = {}
        for folder, pattern, word in (("adapters", r"step_(\d+)", "adapter"), ("checkpoints", r"(\d+)", "full state")):
            for path in sorted((self.folder / folder).glob("*")):
                if match := re.fullmatch(pattern, path.name):
                    steps.setdefault(int(match[1]), []).append(word)
        return dict(sorted(steps.items()))

    def signature(self) -> str:
        """Changes whenever something in the folder does that a page shows, or more of it has been read."""
        paths = [self.folder / NAME, self.folder / "config.json", self.folder / "report.md"]
        stats = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.is_file()]
        files = [(place, file.path.stat().st_size, file.known() is not None) for place, file in self.files().items()]
        return hashlib.sha256(repr((stats, files, list(self.saved()))).encode()).hexdigest()[:20]

    @cached_property
    def token_texts(self) -> TokenTexts:
        """The texts of token ids, by the tokenizer that the configuration names."""
        return TokenTexts(self.setting("model", "tokenizer", str) or self.setting("model", "path", str) or "")

    @cached_property
    def documents(self) -> Documents:
        """The documents of the corpus that the configuration names."""
        return Documents(self.setting("task", "corpus", str) or "", self.setting("task", "index_dir", str) or "")

    def _text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text("utf-8", "replace") if path.is_file() and _inside(path, self.folder) else ""


def find_runs(workdir: str | Path) -> list[Run]:
    """The runs in a folder, itself included; evaluations in a run are runs of their own.

    Raises UserError for a folder that is not there or holds no run.
    """
    root = local_folder(workdir)
    if not root.is_dir():
        raise UserError(f"--workdir={workdir}: no such folder")
    runs = [
        Run(folder, f"{root.name}/{folder.relative_to(root)}" if folder != root else root.name, _base(folder, root))
        for folder in _folders(root, _DEPTH)
        if _inside(folder, root) and ((folder / NAME).is_file() or (folder / "rollouts").is_dir())
    ]
    if not runs:
        raise UserError(f"--workdir={workdir}: no run in it (a folder with {NAME} or rollouts/)")
    return runs


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those in it that may be read; not those of records, whatever their splits are called."""
    yield folder
    if depth:
        for path in sorted(folder.iterdir()):
            passed_over = path.name == "rollouts" or path.name.startswith(".") or path.is_symlink()
            if not passed_over and path.is_dir() and os.access(path, os.R_OK | os.X_OK):
                yield from _folders(path, depth - 1)


def _base(folder: Path, root: Path) -> str:
    return "" if folder == root else f"{folder.relative_to(root).as_posix()}/"


def _inside(path: Path, folder: Path) -> bool:
    """Whether a path leads nowhere else by a link."""
    return path.resolve().is_relative_to(folder.resolve())
