"""Tasks of the curated-set family: a query, and the facts that the curated documents must support.

A task file is JSONL, one task a line:
`{"id", "query", "facts": [{"fact", "chunk_ids": [...], "is_final_answer"?}], "answer"?}`.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Corpus
from jaxsearchrl.strict_json import read_objects

_NAMED = 10  # how many missing ids an error names


@dataclass(frozen=True)
class Fact:
    """One thing to find evidence for: any one of `chunk_ids` (distinct, never empty) supports it."""

    fact: str
    chunk_ids: tuple[str, ...]
    is_final_answer: bool = False


@dataclass(frozen=True)
class Task:
    """One question. `answer` is for people; the reward looks at the facts only."""

    id: str
    query: str
    facts: tuple[Fact, ...]
    answer: str = ""


def load_tasks(path: str | Path) -> list[Task]:
    """The tasks of a JSONL file, in file order; blank lines are allowed.

    Raises UserError naming file, line and key for anything unreadable, missing, unknown, of the wrong type or repeated.
    """
    tasks: dict[str, Task] = {}
    try:
        for number, row in read_objects(path):
            where = f"{path}:{number}"
            task = _task(row, where)
            if task.id in tasks:
                raise UserError(f'{where}: id "{task.id}" was used before; every task needs its own id')
            tasks[task.id] = task
    except OSError as error:
        raise UserError(f"cannot read the tasks of {path}: {error}") from error
    if not tasks:
        raise UserError(f"{path} holds no task")
    return list(tasks.values())


def check_gold(tasks: Sequence[Task], corpus: Corpus, path: str | Path) -> None:
    """Raises UserError when the corpus lacks a gold chunk: its fact could never be found, and the reward would lie.

    path: the file of the tasks, for the message.
    """
    missing = {
        chunk_id: task.id
        for task in tasks
        for fact in task.facts
        for chunk_id in fact.chunk_ids
        if corpus.read(chunk_id) is None
    }
    if missing:
        named = ", ".join(f"{chunk_id} (task {task_id})" for chunk_id, task_id in list(missing.items())[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise UserError(
            f"{path}: the corpus lacks {len(missing)} gold chunk ids: {named}{more}; "
            "add these documents to the corpus, or remove the tasks that need them"
        )


def _task(row: Any, where: str) -> Task:
    _check_keys(row, {"id", "query", "facts", "answer"}, where)
    facts = _get(row, "facts", list, where)
    if not facts:
        raise UserError(f'{where}: "facts" is empty; a task needs at least one fact')
    return Task(
        id=_text(row, "id", where),
        query=_text(row, "query", where),
        facts=tuple(_fact(fact, f"{where}: facts[{i}]") for i, fact in enumerate(facts)),
        answer="" if row.get("answer") is None else _get(row, "answer", str, where),
    )


def _fact(row: Any, where: str) -> Fact:
    _check_keys(row, {"fact", "chunk_ids", "is_final_answer"}, where)
    chunk_ids = _get(row, "chunk_ids", list, where)
    if not chunk_ids or not all(isinstance(chunk_id, str) and chunk_id for chunk_id in chunk_ids):
        raise UserError(f'{where}: "chunk_ids" must be a list of at least one id, each a non-empty string')
    is_final_answer = _get(row, "is_final_answer", bool, where) if "is_final_answer" in row else False
    return Fact(_text(row, "fact", where), tuple(dict.fromkeys(chunk_ids)), is_final_answer)


def _check_keys(row: Any, known: set[str], where: str) -> None:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
    for key in row.keys() - known:
        near = difflib.get_close_matches(key, known, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(sorted(known))}"
        raise UserError(f'{where}: unknown key "{key}"; {hint}')


def _get(row: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    if key not in row:
        raise UserError(f'{where}: key "{key}" is missing; found {", ".join(row) or "no keys"}')
    if not isinstance(row[key], kind):
        raise UserError(f'{where}: "{key}" must be a {kind.__name__}, found {type(row[key]).__name__}')
    return row[key]


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    text = _get(row, key, str, where)
    if not text.strip():
        raise UserError(f'{where}: "{key}" is empty')
    return text
