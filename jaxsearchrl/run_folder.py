"""The folder that holds everything a run made, and the lock that keeps it to one process, the first of several.

config.json       the resolved configuration
metrics.jsonl     one line per step and kind: the source of truth of every number
rollouts/         rollout records (records.py)
checkpoints/      full states (checkpoint.py)
adapters/         an exported adapter for every checkpoint ever taken
tensorboard/  evaluations/  plots/
"""

import fcntl
import itertools
import json
import os
import socket
from pathlib import Path
from typing import Self

from jaxsearchrl import hosts
from jaxsearchrl.errors import UserError


class RunFolder:
    """Opens a run's folder, making it where needed, and holds its lock until `close` (or the end of the `with`).

    The operating system drops the lock of a process that ends, however it ends. Raises UserError when another live
    process holds the folder, when `workdir` is not a local folder, or when it cannot be written.
    """

    def __init__(self, workdir: str | Path) -> None:
        self.path = local_folder(workdir)
        if not hosts.is_first():
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "run.lock").open("a+")
        except OSError as error:
            raise UserError(f"--workdir={workdir}: cannot be opened for writing ({error})") from error
        self._take_lock()

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise UserError(
                f"{self.path} is in use by {holder}: wait for it, stop it, or choose another --workdir"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._lock.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the folder free."""
        if hosts.is_first():
            self._lock.close()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def adapters(self) -> Path:
        return self.path / "adapters"

    def evaluation(self, name: str, config: str) -> Path:
        """Where an evaluation under a resolved configuration (JSON text) belongs: evaluations/{name}.

        Where another evaluation has that folder, name_2, name_3, …: they stay side by side, and the same one goes on in
        its own. The folder's config.json is written.
        """
        for number in itertools.count(1):
            folder = self.path / "evaluations" / (f"{name}_{number}" if number > 1 else name)
            stored = folder / "config.json"
            if not folder.exists() or (stored.exists() and stored.read_bytes() == config.encode()):
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(stored, config.encode())
                return folder
        raise AssertionError("there are no more numbers")

    def write_config(self, text: str) -> None:
        """Stores the resolved configuration (JSON text)."""
        json.loads(text)
        hosts.once(write_atomically, self.path / "config.json", text.encode())

    def read_config(self) -> str | None:
        """The stored configuration; None in a new folder. Raises UserError when it is no text."""
        return hosts.once(self._read_config)

    def _read_config(self) -> str | None:
        path = self.path / "config.json"
        try:
            return path.read_text(encoding="utf-8") if path.is_file() else None
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: not UTF-8 text ({error.reason}); put the file back, or use another --workdir"
            ) from error


def local_folder(workdir: str | Path) -> Path:
    """The run folder's full path. Raises UserError for an address of another machine."""
    if "://" in str(workdir):
        raise UserError(f"--workdir={workdir}: must be a local folder; sync it to a bucket from there")
    return Path(workdir).expanduser().resolve()


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the file as a whole: after a crash it holds the old or the new bytes, never a part."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
