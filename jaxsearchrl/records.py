"""What a rollout leaves on disk: one JSON line per episode, one gzipped file per split and step.

    workdir/rollouts/{split}/step_000012.jsonl.gz

A file is written beside its place and renamed when complete, so a run that was killed rewrites the step and nothing
doubles. The explorer, the reports, re-scoring and supervised warm starts read these files and nothing else of a run.
"""

import functools
import gzip
import json
import logging
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from jaxsearchrl.errors import UserError
from jaxsearchrl.strict_json import read_object
from jaxsearchrl.trajectory import Span, SpanKind, Trajectory

SCHEMA = 1
LOGPROB_DIGITS = 6
TOKEN_LIMIT = 2**31
"""Token ids are below it, as the device's integers are. Whether a vocabulary has them is for its owner to check."""
_DEEPEST = 32

T = TypeVar("T")


@dataclass(frozen=True)
class CallRecord:
    """One tool call in the order in which it was written; a malformed one has `name` "" and its text in `outcome`."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ok: bool = True
    outcome: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", _plain(self.arguments))


@dataclass(frozen=True)
class EncounteredRecord:
    """A document that was shown: its rank (1 is best) in the answer to call number `call` (from 0) of the turn."""

    id: str
    rank: int
    call: int = 0


@dataclass(frozen=True)
class TurnRecord:
    """One turn and what answered it. Seconds are wall time; `curated` is the set after the turn.

    tokens: positions [start, stop) of the sampled ids in the episode's tokens; None for an agent without tokens.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallRecord, ...] = ()
    observation: str = ""
    encountered: tuple[EncounteredRecord, ...] = ()
    curated: tuple[str, ...] = ()
    seconds_model: float = 0.0
    seconds_tools: float = 0.0
    tokens: tuple[int, int] | None = None
    truncated: bool = False


@dataclass(frozen=True)
class RolloutRecord:
    """One episode.

    group, attempt: the question's number within the step, and the try's number within its group.
    adapter: how many updates the sampling policy had seen.
    source: the collection that the task comes from, "" where there is one only.
    gold: what the task counts as right, as the task's file has it.
    tokens, spans: the trajectory; the action mask is 1 on spans of kind "sampled".
    sample_logprobs: nats, of the sampled tokens only, in order, rounded to 6 decimals. Which experts a sampler took (a
    trajectory's routes) is not recorded: it says something of the step at hand only.
    reward, advantage: None when the infrastructure failed for good; the advantage also as long as it is not known.
    infrastructure_errors: every failure of the infrastructure, also those that a retry healed.
    seconds: wall time from reset to score.

    Raises ValueError for a non-finite number, a token that is no id, or spans that do not tile the tokens.
    """

    run: str
    split: str
    step: int
    task_id: str
    group: int
    attempt: int
    uid: int
    query: str
    adapter: int = 0
    source: str = ""
    gold: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    sample_logprobs: tuple[float, ...] = ()
    turns: tuple[TurnRecord, ...] = ()
    score_parts: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None
    advantage: float | None = None
    outcome: str = ""
    stop_reason: str = ""
    infrastructure_errors: tuple[str, ...] = ()
    truncated: bool = False
    seconds: float = 0.0

    def __post_init__(self) -> None:
        # Numbers of numpy become Python's, so that equal records are equal lines.
        for name in ("reward", "advantage"):
            object.__setattr__(self, name, None if getattr(self, name) is None else float(getattr(self, name)))
        logprobs = tuple(round(float(logprob), LOGPROB_DIGITS) for logprob in self.sample_logprobs)
        object.__setattr__(self, "sample_logprobs", logprobs)
        object.__setattr__(self, "tokens", tuple(int(token) for token in self.tokens))
        object.__setattr__(self, "score_parts", {name: float(part) for name, part in self.score_parts.items()})
        object.__setattr__(self, "gold", _plain(self.gold))
        numbers = [self.reward or 0.0, self.advantage or 0.0, self.seconds, *self.score_parts.values()]
        numbers += [*self.sample_logprobs, *(s for t in self.turns for s in (t.seconds_model, t.seconds_tools))]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError(f"the record of task {self.task_id!r} holds a non-finite number")
        foreign = [token for token in self.tokens if not 0 <= token < TOKEN_LIMIT]
        if foreign:
            raise ValueError(f"the record of task {self.task_id!r} holds {foreign[0]}, which is no token id")
        position = 0
        for span in self.spans:
            if span.start != position or span.stop < span.start or span.kind not in get_args(SpanKind):
                raise ValueError(f"the record of task {self.task_id!r} has a span out of place: {span}")
            position = span.stop
        sampled = self.span_tokens("sampled")
        if position != len(self.tokens) or sampled != len(self.sample_logprobs):
            raise ValueError(
                f"the record of task {self.task_id!r} has {len(self.tokens)} tokens in spans up to {position}, "
                f"and {len(self.sample_logprobs)} log-probs for {sampled} sampled tokens"
            )

    @property
    def failed(self) -> bool:
        """The infrastructure failed for good: the episode is in no loss, baseline or mean."""
        return self.reward is None

    @property
    def curated(self) -> tuple[str, ...]:
        """The curated set as the episode left it."""
        return self.turns[-1].curated if self.turns else ()

    def span_tokens(self, kind: SpanKind) -> int:
        """How many tokens came in by spans of this kind."""
        return sum(span.stop - span.start for span in self.spans if span.kind == kind)

    def trajectory(self) -> Trajectory:
        """The token buffer again (its log-probs as rounded, without routes)."""
        trajectory = Trajectory(list(self.tokens), routes=[0] * len(self.tokens), spans=list(self.spans))
        logprobs = iter(self.sample_logprobs)
        for span in self.spans:
            count, sampled = span.stop - span.start, span.kind == "sampled"
            trajectory.action_mask += [int(sampled)] * count
            trajectory.sample_logprobs += [next(logprobs) if sampled else 0.0 for _ in range(count)]
        return trajectory


def trajectory_fields(trajectory: Trajectory) -> dict[str, Any]:
    """The three fields of a record that a trajectory fills: `RolloutRecord(..., **trajectory_fields(trajectory))`."""
    pairs = zip(trajectory.sample_logprobs, trajectory.action_mask, strict=True)
    return {
        "tokens": tuple(trajectory.tokens),
        "spans": tuple(trajectory.spans),
        "sample_logprobs": tuple(logprob for logprob, action in pairs if action),
    }


def to_json_line(record: RolloutRecord) -> str:
    """One line of ASCII without a newline: NUL and lone surrogates, which a model may write, survive as escapes."""
    return json.dumps({"schema": SCHEMA, **asdict(record)}, allow_nan=False, separators=(",", ":"))


def from_json_line(line: bytes | str, where: str = "rollout record") -> RolloutRecord:
    """Raises UserError, starting with `where`: an unknown schema, a missing or unknown key, a wrong type or value."""
    data = read_object(line, where)
    if "schema" not in data:
        raise UserError(f"{where}: not a rollout record: it has no key 'schema'")
    schema = data.pop("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise UserError(f"{where}: schema {schema!r}, but this version reads {SCHEMA}; use the one that wrote the file")
    try:
        return build(RolloutRecord, data, "")
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: {error}") from error


class RecordWriter:
    """Writes the records of one split and step.

        with RecordWriter(workdir, "train", 3) as writer:
            writer.append(record)

    The file appears under its name when the block ends, replacing an earlier one; a block left by an exception leaves
    nothing.
    """

    def __init__(self, workdir: str | Path, split: str, step: int) -> None:
        self._split, self._step = split, step
        self.path = records_path(workdir, split, step)
        self._unfinished = self.path.with_name(f".{self.path.name}.unfinished")

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # No time and no name in the header: equal records make equal files.
        self._raw = self._unfinished.open("wb")
        self._file = gzip.GzipFile(filename="", fileobj=self._raw, mode="wb", mtime=0)
        return self

    def append(self, record: RolloutRecord) -> None:
        """Raises ValueError for a record of another split or step."""
        if (record.split, record.step) != (self._split, self._step):
            raise ValueError(f"a record of {record.split} step {record.step} in {self.path}")
        self._file.write(to_json_line(record).encode() + b"\n")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.close()
        if kind is None:
            self._unfinished.replace(self.path)
        else:
            self._unfinished.unlink()


def write_records(workdir: str | Path, split: str, step: int, records: Sequence[RolloutRecord]) -> None:
    """All records of a split and step at once."""
    with RecordWriter(workdir, split, step) as writer:
        for record in records:
            writer.append(record)


def records_path(workdir: str | Path, split: str, step: int) -> Path:
    """Where the records of a split and step lie."""
    return Path(workdir) / "rollouts" / split / f"step_{step:06d}.jsonl.gz"


def record_steps(workdir: str | Path, split: str) -> list[int]:
    """The steps of a split that have records, in order."""
    folder = records_path(workdir, split, 0).parent
    names = (re.fullmatch(r"step_(\d+)\.jsonl\.gz", path.name) for path in folder.glob("*"))
    return sorted(int(name[1]) for name in names if name)


def read_records(workdir: str | Path, split: str, step: int) -> list[RolloutRecord]:
    """The records of a step in the order of writing. Raises UserError when there are none; see `read_file`."""
    path = records_path(workdir, split, step)
    if not path.is_file():
        raise UserError(f"{path}: no such file; recorded steps of {split!r}: {record_steps(workdir, split) or 'none'}")
    return read_file(path)


def read_file(path: str | Path) -> list[RolloutRecord]:
    """The records of a .jsonl or .jsonl.gz file. Raises UserError naming file and line.

    A file that ends in the middle of a line (a broken copy) gives the whole lines; a warning says so.
    """
    path = Path(path)
    records: list[RolloutRecord] = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.endswith(b"\n") and _is_cut(line):
            logging.getLogger(__name__).warning("%s ends in the middle of line %d; it was left out", path, number)
        else:
            records.append(from_json_line(line, f"{path}, line {number}"))
    return records


def _lines(path: Path) -> Iterator[bytes]:
    """Lines with their newline; what a cut-off gzip stream ends with comes without one."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline():
                yield line
    except EOFError:
        yield b""
    except (zlib.error, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error}); name a .jsonl or .jsonl.gz file that is whole") from error


def _is_cut(line: bytes) -> bool:
    """Whether the rest of a line is missing: the beginning of an object is never JSON."""
    try:
        json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        return isinstance(error, json.JSONDecodeError)
    return False


def build(kind: type[T], data: Mapping[str, Any], key: str = "") -> T:
    """A dataclass from its JSON object. Raises TypeError naming a missing or unknown key, or one of a wrong type."""
    types = _types(kind)
    unknown = data.keys() - types.keys()
    if unknown:
        raise TypeError(f"unknown key {sorted(unknown)[0]!r} in {kind.__name__}")
    return kind(**{name: _read(types[name], value, f"{key}{name}") for name, value in data.items()})


def _read(wanted: Any, value: Any, key: str) -> Any:
    """A value of JSON as the declared type has it: lists as tuples, 1 as 1.0, and nothing else is converted."""
    origin, inside = get_origin(wanted), get_args(wanted)
    if origin is UnionType:  # X | None
        return None if value is None else _read(inside[0], value, key)
    if wanted is Any or type(value) is wanted or (origin is Literal and value in inside):
        return value
    if wanted is float and type(value) is int:
        return float(value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _read(inside[1], item, f"{key}.{name}") for name, item in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        if len(kinds) == len(value):
            return tuple(_read(kind, item, key) for kind, item in zip(kinds, value, strict=True))
    if is_dataclass(wanted) and isinstance(value, dict):
        return build(wanted, value, f"{key}.")  # type: ignore[arg-type]
    raise TypeError(f"{key} must be {_in_words(wanted)}, found {value!r:.60}")


_types = functools.cache(get_type_hints)


def _in_words(wanted: Any) -> str:
    origin, inside = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return f"one of {', '.join(inside)}"
    if origin is tuple:
        return "a list" if inside[-1] is Ellipsis else f"a list of {len(inside)}"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(wanted, "an object")


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` in JSON's types. Arguments come from the model: NaN and depth beyond 32 become words, never an error."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == _DEEPEST:
        return "(nested too deep)"
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item, depth + 1) for item in value]
    return str(value)
