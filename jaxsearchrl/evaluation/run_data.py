"""What a report reads of a run folder, or of one that `--mode=eval` left: settings, metrics, evaluated episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxsearchrl.config import Config
from jaxsearchrl.config_tree import from_json
from jaxsearchrl.errors import UserError
from jaxsearchrl.records import RolloutRecord, read_records, record_steps
from jaxsearchrl.tasks.families import measures_of
from jaxsearchrl.telemetry.alarms import Alarm, alarms
from jaxsearchrl.telemetry.metrics_file import read_metrics

SPLIT = "eval"
"""Sampled tries; greedy ones have no spread over tries."""


@dataclass(frozen=True)
class RunData:
    """evaluations: the records of each evaluated step, in order, without their tokens. rows: of metrics.jsonl."""

    label: str
    folder: Path
    config: Config
    rows: Sequence[Mapping[str, Any]]
    evaluations: Mapping[int, Sequence[RolloutRecord]]

    @property
    def measures(self) -> tuple[str, ...]:
        """What the family's evaluations measure; by the first, one checkpoint is better than another."""
        return measures_of(self.config.task)

    def rows_of(self, kind: str) -> list[Mapping[str, Any]]:
        """The rows of one kind."""
        return [row for row in self.rows if row["kind"] == kind]

    @property
    def last(self) -> Sequence[RolloutRecord]:
        """The records of the last evaluation; none without one."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else ()

    @cached_property
    def alarms(self) -> dict[str, tuple[int, int, Alarm]]:
        """Each alarm of the training, by name: the first and the last step that raised it, and what was seen then."""
        rows = self.rows_of("train")
        raised: dict[str, tuple[int, int, Alarm]] = {}
        for end in range(1, len(rows) + 1):
            step = rows[end - 1]["step"]
            for alarm in alarms(rows[:end]):
                raised[alarm.name] = (raised.get(alarm.name, (step,))[0], step, alarm)
        return raised


def read_run(folder: str | Path, label: str = "") -> RunData:
    """Reads a folder. Raises UserError for one without a configuration, and for one that has nothing to report."""
    folder = Path(folder)
    stored = folder / "config.json"
    if not stored.is_file():
        raise UserError(f"{folder} is no run folder: it has no config.json (give the folder of --workdir)")
    rows = read_metrics(folder)
    evaluations = {step: _without_tokens(read_records(folder, SPLIT, step)) for step in record_steps(folder, SPLIT)}
    if not rows and not evaluations:
        raise UserError(f"{folder} has neither metrics nor evaluated episodes yet; nothing can be reported")
    config = from_json(Config, stored.read_text(encoding="utf-8"), str(stored))
    return RunData(label or folder.resolve().name, folder, config, rows, evaluations)


def _without_tokens(records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
    """Long episodes of many evaluations would fill the memory, and no report looks at ids."""
    return [replace(record, tokens=(), spans=(), sample_logprobs=()) for record in records]


def labelled(folders: Sequence[str]) -> list[RunData]:
    """The runs of several folders, each with a name of its own: the folder's, or its path where names repeat."""
    names = [Path(folder).resolve().name for folder in folders]
    labels = [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]
    if len({*labels}) < len(labels):
        raise UserError("a run folder is named twice; name each once")
    return [read_run(folder, label) for folder, label in zip(folders, labels, strict=True)]
