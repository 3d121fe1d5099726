"""Tasks of the curated-set family: a query, and the facts that the curated documents must support.

A task file is JSONL, one task a line:
`{"id", "query", "facts": [{"fact", "chunk_ids": [...], "is_final_answer"?}], "answer"?}`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Corpus
from jaxsearchrl.tasks.task_files import check_keys, get, get_text, read_tasks

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
    source: str = ""

    @property
    def gold(self) -> Mapping[str, Any]:
        """The facts."""
        return {"facts": [asdict(fact) for fact in self.facts]}


def load_tasks(path: str | Path) -> list[Task]:
    """The tasks of a JSONL file, in file order; blank lines are allowed.

    Raises UserError naming file, line and key for anything unreadable, missing, unknown, of the wrong type or repeated.
    """
    return read_tasks(path, task_of, "task")


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


def task_of(row: Any, where: str) -> Task:
    """The task of a line's object. Raises UserError, starting with `where`."""
    check_keys(row, {"id", "query", "facts", "answer"}, where)
    facts = get(row, "facts", list, where)
    if not facts:
        raise UserError(f'{where}: "facts" is empty; a task needs at least one fact')
    return Task(
        id=get_text(row, "id", where),
        query=get_text(row, "query", where),
        facts=tuple(_fact(fact, f"{where}: facts[{i}]") for i, fact in enumerate(facts)),
        answer="" if row.get("answer") is None else get(row, "answer", str, where),
    )


def to_row(task: Task) -> dict[str, Any]:
    """The line of a task, as `load_tasks` reads it."""
    facts = [{**asdict(fact), "chunk_ids": list(fact.chunk_ids)} for fact in task.facts]
    return {"id": task.id, "query": task.query, "facts": facts, **({"answer": task.answer} if task.answer else {})}


def _fact(row: Any, where: str) -> Fact:
    check_keys(row, {"fact", "chunk_ids", "is_final_answer"}, where)
    chunk_ids = get(row, "chunk_ids", list, where)
    if not chunk_ids or not all(isinstance(chunk_id, str) and chunk_id for chunk_id in chunk_ids):
        raise UserError(f'{where}: "chunk_ids" must be a list of at least one id, each a non-empty string')
    is_final_answer = get(row, "is_final_answer", bool, where) if "is_final_answer" in row else False
    return Fact(get_text(row, "fact", where), tuple(dict.fromkeys(chunk_ids)), is_final_answer)
