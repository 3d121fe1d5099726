"""metrics.jsonl, the source of truth of every number of a run: one line per step and kind.

    {"kind": "train", "step": 3, "learn/loss": -0.01, "score/f_beta": 0.41, ...}

Kinds are told apart by the trainer ("train", "eval", ...). A number that is not finite is written as null.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.run_folder import write_atomically
from jaxsearchrl.strict_json import read_object

NAME = "metrics.jsonl"


class MetricsFile:
    """Appends to `workdir/metrics.jsonl`. A line that a killed run left unfinished is cut off on opening."""

    def __init__(self, workdir: str | Path) -> None:
        self.path = Path(workdir) / NAME
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._lines()
        if whole and not whole[-1].endswith(b"\n"):
            write_atomically(self.path, b"".join(whole[:-1]))
        self._last = {row["kind"]: row["step"] for row in read_metrics(workdir)}

    def append(self, step: int, kind: str, metrics: Mapping[str, float]) -> int:
        """Writes and flushes one line; returns how many of its numbers were not finite.

        Raises ValueError for a step that is not above the kind's last one (a resumed run calls `truncate_after` first)
        and for a metric called "kind" or "step".
        """
        if step <= self._last.get(kind, step - 1):
            raise ValueError(
                f"{self.path} already has {kind} metrics of step {self._last[kind]}; step {step} came again"
            )
        if reserved := metrics.keys() & {"kind", "step"}:
            raise ValueError(f"a metric cannot be called {sorted(reserved)[0]!r}")
        numbers = {name: float(value) for name, value in sorted(metrics.items())}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        line = json.dumps({"kind": kind, "step": step, **finite}, allow_nan=False)
        with self.path.open("a") as file:
            file.write(line + "\n")
        self._last[kind] = step
        return sum(value is None for value in finite.values())

    def truncate_after(self, step: int) -> None:
        """Drops every line of a step beyond `step`: what a resumed run will do again."""
        kept = [line for line in self._lines() if json.loads(line)["step"] <= step]
        write_atomically(self.path, b"".join(kept))
        self._last = {row["kind"]: row["step"] for row in read_metrics(self.path.parent)}

    def _lines(self) -> list[bytes]:
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            return file.readlines()


def read_metrics(workdir: str | Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The rows of `workdir/metrics.jsonl` (of one kind), in order; none when the file is absent.

    A last line without an end is left out (a run may be writing it). Raises UserError naming any other broken line.
    """
    path = Path(workdir) / NAME
    rows = []
    data = path.read_bytes() if path.is_file() else b""
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"{path}, line {number}"
        row = read_object(line, where)
        for key, wanted in (("kind", str), ("step", int)):
            if type(row.get(key)) is not wanted:
                raise UserError(f"{where}: not a line of metrics: {key!r} is {row.get(key)!r}; remove the line")
        if kind in (None, row["kind"]):
            rows.append(row)
    return rows
