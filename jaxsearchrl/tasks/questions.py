"""Questions with accepted answers.

A file of them is JSONL, one question a line: `{"id", "question", "answers": [...], "data_source"?}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.task_files import check_keys, get, get_text, read_tasks


@dataclass(frozen=True)
class Question:
    """One question. Any one of `answers` (distinct, never empty) is right; `source` names the benchmark it is from."""

    id: str
    query: str
    answers: tuple[str, ...]
    source: str = ""

    @property
    def gold(self) -> Mapping[str, Any]:
        """The accepted answers."""
        return {"answers": list(self.answers)}


def load_questions(path: str | Path) -> list[Question]:
    """The questions of a JSONL file, in file order; blank lines are allowed.

    Raises UserError naming file, line and key for anything unreadable, missing, unknown, of the wrong type or repeated.
    """
    return read_tasks(path, _question, "question")


def to_row(question: Question) -> dict[str, Any]:
    """The object that stands in a file for a question."""
    row: dict[str, Any] = {"id": question.id, "question": question.query, "answers": list(question.answers)}
    return row | {"data_source": question.source} if question.source else row


def _question(row: Any, where: str) -> Question:
    check_keys(row, {"id", "question", "answers", "data_source"}, where)
    answers = get(row, "answers", list, where)
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise UserError(f'{where}: "answers" must be a list of at least one answer, each a string that is not blank')
    return Question(
        id=get_text(row, "id", where),
        query=get_text(row, "question", where),
        answers=tuple(dict.fromkeys(answers)),
        source="" if row.get("data_source") is None else get(row, "data_source", str, where),
    )
