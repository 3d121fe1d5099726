"""Where Harness-1's data set lies: a folder as it is published, or as sec-search-rl downloads it, or the hub."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxsearchrl.data.assets import sha256_of
from jaxsearchrl.data.input_files import download, is_hub_id, looked_up
from jaxsearchrl.errors import UserError

HUB_ID = "pat-jj/harness-1-train-data"
SHARDS, CHUNKS = 43, 2_115_106  # as published
_SHARD = re.compile(r"train-(\d+)(?:-of-(\d+))?\.parquet")
_QUERIES = re.compile(r"(train|test)-(\d+)-of-(\d+)\.parquet")
_PATTERNS = ("data/*.parquet", "corpora/sec/train/*.parquet")
_LAYOUT = "data/train-00000-of-00001.parquet and corpora/sec/train/train-00000.parquet …"
_ADVICE = f"""Without the hub: on a machine that reaches it, run
    hf download {HUB_ID} --repo-type dataset --include "data/*" "corpora/sec/train/*" --local-dir harness-1
({SHARDS} shards, about 2 GB), copy the folder here, and give --input=THAT_FOLDER. The data set's licence was not
verified by this program's authors: read its card first."""


@dataclass(frozen=True)
class Harness1Input:
    """The files of the query table, of a test split where there is one, and the shards of the corpus, in their order.

    revision: the commit that they are of ("" for local files).
    """

    queries: tuple[Path, ...]
    test: tuple[Path, ...]
    shards: tuple[Path, ...]
    revision: str = ""

    def fingerprint(self) -> dict[str, list[str]]:
        """The sha256 of each file. Raises UserError."""
        parts = {"queries": self.queries, "test": self.test, "corpus": self.shards}
        try:
            return {part: [sha256_of(path) for path in paths] for part, paths in parts.items()}
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error


def find_harness1(given: str) -> Harness1Input:
    """The files that `given` names: a folder, or `owner/name[@revision]` on the hub where there is no such folder.

    The query table is `data/train-*.parquet` (or `queries.parquet`), a test split `data/test-*.parquet`, the corpus
    `corpora/sec/train/*.parquet` (or `corpus/*.parquet`).
    Raises UserError naming what was found and what is wanted, and, where the hub does not answer, what to download.
    """
    if not given.strip():
        raise UserError("--input is empty; name a folder, or a data set of the hub")
    with looked_up(given):
        folder = Path(given).expanduser()
        if folder.is_dir():
            return _in_folder(folder)
        if folder.exists() or not is_hub_id(given):
            raise UserError(f"--input={given}: is no folder; name one with {_LAYOUT}, or a data set such as {HUB_ID}")
        folder = download(given, _PATTERNS, _ADVICE)
        found = _in_folder(folder)
        return Harness1Input(found.queries, found.test, found.shards, revision=folder.name)


def _in_folder(folder: Path) -> Harness1Input:
    splits: dict[str, list[tuple[int, int, Path]]] = {"train": [], "test": []}
    for path in sorted((folder / "data").glob("*.parquet")):
        if name := _QUERIES.fullmatch(path.name):
            splits[name[1]].append((int(name[2]), int(name[3]), path))
    queries = _whole(splits["train"], folder / "data")
    single = folder / "queries.parquet"
    if not queries and single.is_file():
        queries = (single,)
    places = (folder / "corpora" / "sec" / "train", folder / "corpus")
    corpus = next((place for place in places if place.is_dir()), places[0])
    shards = [
        (int(name[1]), int(name[2] or 0), path)
        for path in corpus.glob("*.parquet")
        if (name := _SHARD.fullmatch(path.name))
    ]
    found = _whole(sorted(shards), corpus)
    for files, what in ((queries, "query table"), (found, "corpus")):
        if not files:
            there = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
            raise UserError(f"{folder}: no {what}; wanted {_LAYOUT}; found {there}")
    return Harness1Input(queries, _whole(splits["test"], folder / "data"), found)


def _whole(shards: Sequence[tuple[int, int, Path]], folder: Path) -> tuple[Path, ...]:
    """The files of (number, count or 0, file), in order. Raises UserError where one is missing or there twice."""
    numbers = sorted(number for number, _, _ in shards)
    count = max([total for _, total, _ in shards] + [number + 1 for number in numbers], default=0)
    if numbers != list(range(count)):
        named = ", ".join(path.name for _, _, path in shards[:10])
        raise UserError(f"{folder}: wanted each of the shards 0 to {count - 1} once; found {named}; get them all")
    return tuple(path for _, _, path in sorted(shards))
