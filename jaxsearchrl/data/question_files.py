"""Files of questions, written and divided without holding them: what stays in memory is line numbers and hashes."""

import hashlib
import itertools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxsearchrl.data.assets import sha256_of
from jaxsearchrl.data.joined_tasks import normalise
from jaxsearchrl.raw_rows import Needed, read_rows
from jaxsearchrl.tasks.questions import Question, to_row


class Unusable(Exception):
    """A row that makes no question; its text is the reason, by which such rows are counted."""


def read_questions(
    paths: Sequence[Path], needed: Needed, optional: Sequence[str], make: Callable[[int, dict[str, Any], str], Question]
) -> tuple[Iterator[Question], Counter[str]]:
    """The questions of a split's files, and how many rows made none, by reason: complete when the iterator has ended.

    needed, optional: the columns of `read_rows`.
    make: turns a row's number in the split (from 0), the row and its place into a question, or raises Unusable.
    Raises UserError while iterating, as `read_rows` does.
    """
    dropped = Counter[str]()

    def questions() -> Iterator[Question]:
        print(f"reading {', '.join(map(str, paths))}", file=sys.stderr, flush=True)
        rows = itertools.chain.from_iterable(read_rows(path, needed, optional) for path in paths)
        for number, (where, row) in enumerate(rows):
            try:
                question = make(number, row, where)
            except Unusable as reason:
                dropped[str(reason)] += 1
            else:
                yield question

    return questions(), dropped


def write_questions(path: Path, questions: Iterable[Question]) -> dict[str, list[int]]:
    """Writes a line per question and returns, for each source, its line numbers from 0."""
    lines: dict[str, list[int]] = defaultdict(list)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, question in enumerate(questions):
            file.write(json.dumps(to_row(question), ensure_ascii=False) + "\n")
            lines[question.source].append(number)
    return dict(lines)


def copy_lines(source: Path, wanted: Mapping[Path, Sequence[int]]) -> None:
    """Writes to each path those lines of `source` (numbers from 0), in the order of the numbers."""
    numbers = set().union(*wanted.values())
    with source.open("rb") as file:
        lines = {number: line for number, line in enumerate(file) if number in numbers}
    for path, order in wanted.items():
        path.write_bytes(b"".join(lines[number] for number in order))


def describe(train: Path, others: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """What a manifest says of each file: its sha256, its questions by source, and how many of them train asks as well.

    Two questions are the same when their texts are, but for case and whitespace, whatever their answers.
    """
    asked: set[bytes] = set()
    description: dict[str, dict[str, Any]] = {}
    for path in (train, *others):
        sources, shared = Counter[str](), 0
        for source, text in _sources_and_texts(path):
            sources[source] += 1
            if path == train:
                asked.add(text)
            shared += text in asked
        counts = {"questions": sources.total(), "sources": dict(sorted(sources.items()))}
        description[path.name] = {"sha256": sha256_of(path), **counts}
        if path != train:
            description[path.name]["also_in_train"] = shared
    return description


def _sources_and_texts(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        for line in file:
            row = json.loads(line)
            yield row["data_source"], hashlib.blake2b(normalise(row["question"]).encode(), digest_size=16).digest()
