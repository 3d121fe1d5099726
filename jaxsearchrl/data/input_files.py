"""Where a published data set lies: a folder, single files, or a repository of the Hugging Face hub.

Its files are recognised by their names: `train.parquet`, `test.jsonl.gz`, `train-00000-of-00002.parquet`, …
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxsearchrl.data.assets import sha256_of
from jaxsearchrl.errors import UserError

SPLITS = ("train", "test")

# Older files of the hub have a hash behind the numbers.
_FILE = re.compile(r"(train|test)(?:-(\d+)-of-(\d+)(?:-[0-9a-f]{16})?)?\.(parquet|jsonl|jsonl\.gz)")
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_NAMED = 10  # how many of a folder's files an error names
_WANTED = "train.parquet and test.parquet (or .jsonl, .jsonl.gz, or shards such as train-00000-of-00002.parquet)"


@dataclass(frozen=True)
class Published:
    """A data set as it is published.

    folder: where its files lie in the repository; "" is the root.
    advice: what to download by hand, for people whose machine does not reach the hub.
    """

    hub_id: str
    folder: str
    advice: str


@dataclass(frozen=True)
class Input:
    """The files of each split, shards in their order, and the commit that they are of ("" for local files)."""

    files: Mapping[str, tuple[Path, ...]]
    revision: str = ""

    def fingerprint(self) -> dict[str, list[str]]:
        """The sha256 of each file. Raises UserError."""
        try:
            return {split: [sha256_of(path) for path in paths] for split, paths in self.files.items()}
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error

    def check_output(self, folder: Path) -> None:
        """Raises UserError for the folder of the input itself, which would then hold two files of each split."""
        if any(path.resolve().parent == folder.resolve() for paths in self.files.values() for path in paths):
            raise UserError(f"--output={folder}: is the folder of the input; give another")


def find_input(given: str, published: Published) -> Input:
    """The files that `given` names: a folder, files with commas between them, or `owner/name[@revision]` on the hub.

    What is on the disk comes before the hub. Raises UserError naming what was found and what is wanted, and, where the
    hub does not answer, what to download from where.
    """
    if not given.strip():
        raise UserError("--input is empty; name a folder, files, or a data set of the hub")
    with looked_up(given):
        return _find(given, published)


@contextmanager
def looked_up(given: str) -> Iterator[None]:
    """Raises UserError for what the system says of a place: no permission, no such ~user, a name no file can have."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"--input={given[:200]}: cannot be looked up ({error})"[:500]) from error


def _find(given: str, published: Published) -> Input:
    paths = [Path(given).expanduser()]
    if not paths[0].exists():
        paths = [Path(part.strip()).expanduser() for part in given.split(",")]
    if all(path.is_file() for path in paths):
        return Input(_by_split(paths, given))
    if len(paths) == 1 and paths[0].is_dir():
        return Input(_in_folder(paths[0], published.folder))
    if len(paths) > 1 or not is_hub_id(given):
        missing = ", ".join(str(path) for path in paths if not path.is_file())
        raise UserError(
            f"--input={given}: {missing} is no file; name a folder, files with commas between them, or a data set "
            f"of the hub such as {published.hub_id}"
        )
    places = dict.fromkeys(("", f"{published.folder}/" if published.folder else "", "data/"))
    folder = download(given, [f"{place}{split}*" for place in places for split in SPLITS], published.advice)
    return Input(_in_folder(folder, published.folder), revision=folder.name)


def is_hub_id(given: str) -> bool:
    """Whether it has the form `owner/name[@revision]`, and not that of a path."""
    return bool(_HUB_ID.fullmatch(given)) and not given.startswith((".", "/", "~"))


def _in_folder(folder: Path, subfolder: str) -> Mapping[str, tuple[Path, ...]]:
    for place in dict.fromkeys((folder, folder / subfolder, folder / "data")):
        paths = sorted(place.iterdir()) if place.is_dir() else []
        paths = [path for path in paths if _FILE.fullmatch(path.name)]
        if paths:
            return _by_split(paths, str(place))
    there = sorted(path.name for path in folder.iterdir())
    named = ", ".join(there[:_NAMED]) + (f" and {len(there) - _NAMED} more" if len(there) > _NAMED else "")
    raise UserError(f"{folder}: wanted {_WANTED}; found {named or 'nothing'}")


def _by_split(paths: Iterable[Path], where: str) -> Mapping[str, tuple[Path, ...]]:
    shards: dict[str, list[tuple[re.Match[str], Path]]] = defaultdict(list)
    for path in paths:
        name = _FILE.fullmatch(path.name)
        if not name:
            raise UserError(f"{path}: the name does not say what it is; wanted {_WANTED}")
        shards[name[1]].append((name, path))
    for split in SPLITS:
        if split not in shards:
            found = ", ".join(path.name for group in shards.values() for _, path in group)
            raise UserError(f"{where}: no file of the {split} split; wanted {_WANTED}; found {found}")
    return {split: _in_order(shards[split], split, where) for split in SPLITS}


def _in_order(shards: list[tuple[re.Match[str], Path]], split: str, where: str) -> tuple[Path, ...]:
    """The one file of a split, or all of its shards. A lost shard would be lost questions that nobody misses."""
    by_number = {int(name[2] or 0): path for name, path in shards}
    kinds = {(name[3], name[4]) for name, _ in shards}
    if len(kinds) > 1 or len(by_number) < len(shards):
        names = ", ".join(path.name for _, path in shards)
        raise UserError(f"{where}: the {split} split is there more than once: {names}; leave one of them there")
    count = int(shards[0][0][3] or 1)
    if by_number.keys() != set(range(count)):
        numbers = ", ".join(str(number) for number in sorted(by_number))
        raise UserError(f"{where}: the {split} split is incomplete: shards {numbers} of 0 to {count - 1}; get them all")
    return tuple(by_number[number] for number in range(count))


def download(given: str, patterns: Sequence[str], advice: str) -> Path:
    """The folder of the hub's cache that holds the files of a data set that match; its name is the commit.

    given: `owner/name[@revision]`. Raises UserError ending in `advice` where the hub does not deliver.
    """
    from huggingface_hub import snapshot_download

    hub_id, _, named = given.partition("@")
    revision = named or "main"
    try:
        return Path(snapshot_download(hub_id, repo_type="dataset", revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # what is raised changes with the library's version and with its HTTP client
        first_line = str(error).strip().partition("\n")[0]
        raise UserError(
            f"--input={hub_id}: no such file or folder, and the hub did not deliver revision {revision} of it "
            f"({type(error).__name__}: {first_line}).\n{advice}"
        ) from error
