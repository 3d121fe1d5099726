"""Who says why an episode failed, and how far they agree: the rules, a language model (judge.py), people.

Two files of a run folder, one JSON object a line. `uid` numbers an episode within its evaluated step:

    judged.jsonl    {"step": 4, "uid": 12, "task_id": "q7", "word": "bad query", "model": "NAME", "why": "It never …"}
    labels.jsonl    {"step": 4, "uid": 12, "word": "bad query"}         written by hand

Agreement is the share of episodes with the same word, with its interval by task, and Cohen's kappa ("A coefficient of
agreement for nominal scales", 1960). With p the share that agree, and q = Σ_w a_w · b_w the share that would if both
used their words as often but at random,

    kappa = (p - q) / (1 - q)
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.evaluation.failures import FAILURES, failure
from jaxsearchrl.evaluation.statistics import Estimate, by_task, mean_estimate
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.strict_json import parse_lines

JUDGED, LABELS = "judged.jsonl", "labels.jsonl"
WORDS = (*FAILURES, "other")
RULES, PEOPLE = "the rules", "labels by hand"
"""Who judges beside models; no model may be called so."""

EpisodeKey = tuple[int, int]
"""(step, uid)."""


@dataclass(frozen=True)
class Judgement:
    """What `model` (or the rules, or a person) says of one episode, and in a sentence why."""

    step: int
    uid: int
    word: str
    task_id: str = ""
    model: str = PEOPLE
    why: str = ""

    @property
    def key(self) -> EpisodeKey:
        """Which episode it is."""
        return self.step, self.uid

    def to_line(self) -> str:
        """As a line of the file, in ASCII."""
        return json.dumps(asdict(self)) + "\n"


@dataclass(frozen=True)
class Agreement:
    """Of two who judged the same episodes. kappa: None where both use one word only, so that chance explains it all.

    apart: pairs of words in which they differ, and how often; the most frequent first.
    """

    share: Estimate
    kappa: float | None
    apart: Sequence[tuple[tuple[str, str], int]]


def unsolved(evaluations: Mapping[int, Sequence[RolloutRecord]]) -> list[RolloutRecord]:
    """The scored episodes that the rules give a word: those of families with searches that did not solve their task."""
    scored = (record for records in evaluations.values() for record in records if not record.failed)
    searching = (record for record in scored if {"candidate_recall", "retrieved"} & record.score_parts.keys())
    return [record for record in searching if failure(record)]


def by_rule(records: Iterable[RolloutRecord]) -> list[Judgement]:
    """What the rules of failures.py say of unsolved episodes."""
    return [Judgement(r.step, r.uid, failure(r) or "solved", r.task_id, RULES) for r in records]


def agreement(
    one: Sequence[Judgement], other: Sequence[Judgement], records: Sequence[RolloutRecord]
) -> Agreement | None:
    """Over the records that both judged; None without any."""
    ours, theirs = ({found.key: found.word for found in judgements} for judgements in (one, other))
    tasks = {(record.step, record.uid): record.task_id for record in records}
    both = [(task, ours[key], theirs[key]) for key, task in tasks.items() if key in ours and key in theirs]
    if not both:
        return None
    share = mean_estimate(by_task((task, float(a == b)) for task, a, b in both))
    ones, others, count = Counter(a for _, a, _ in both), Counter(b for *_, b in both), len(both)
    same = sum(a == b for _, a, b in both) / count
    chance = sum(ones[word] * others[word] for word in ones) / count**2
    apart = Counter((a, b) for _, a, b in both if a != b).most_common()
    return Agreement(share, None if chance == 1 else (same - chance) / (1 - chance), apart)


def judged(folder: Path) -> list[Judgement]:
    """What models have said of a run's episodes. A last line that is not finished (yet) is left out.

    Raises UserError also for a line of no model.
    """
    path = folder / JUDGED
    data = _bytes(path)
    found = _read(data[: data.rfind(b"\n") + 1], path)
    for judgement in found:
        check_model(judgement.model, f"{path}: step {judgement.step}, uid {judgement.uid}: its model")
    return found


def check_model(model: str, where: str) -> None:
    """Raises UserError for a model whose judgements could not be told from the rules' or from people's."""
    if model in (RULES, PEOPLE):
        raise UserError(f"{where} is {model!r}, which stands for others; give the model's own name")


def labels(folder: Path, records: Sequence[RolloutRecord]) -> list[Judgement]:
    """What people have said, also where they copied a model's line and put it right.

    Raises UserError also for a word that is none, and for an episode not in the records.
    """
    path, known = folder / LABELS, {(record.step, record.uid) for record in records}
    found = [replace(label, model=PEOPLE) for label in _read(_bytes(path), path)]
    for label in found:
        place = f"{path}: step {label.step}, uid {label.uid}"
        if label.key not in known:
            raise UserError(f"{place}: the run has no such evaluated episode that failed; take step and uid from it")
        if label.word not in WORDS:
            raise UserError(f"{place}: {label.word!r} is no word for a failure; choose of {', '.join(WORDS)}")
    return found


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _read(data: bytes, path: Path) -> list[Judgement]:
    """All of a file; of one episode by one model the last counts. Raises UserError, naming file and line."""
    found = {}
    for number, line in parse_lines(data.splitlines(), path):
        judgement = _judgement(line, f"{path}:{number}")
        found[judgement.key, judgement.model] = judgement
    return [*found.values()]


def _judgement(data: Mapping[str, Any], where: str) -> Judgement:
    kinds = {"step": int, "uid": int, "word": str, "task_id": str, "model": str, "why": str}
    for key, value in data.items():
        if key not in kinds:
            raise UserError(f"{where}: unknown key {key!r}; there are {', '.join(kinds)}")
        if type(value) is not kinds[key]:
            raise UserError(f"{where}: {key} must be a {kinds[key].__name__}, found {value!r:.60}")
    if missing := [key for key in ("step", "uid", "word") if key not in data]:
        raise UserError(f"{where}: has no {missing[0]!r}")
    return Judgement(**data)
