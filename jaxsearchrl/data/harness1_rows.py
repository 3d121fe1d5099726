"""Rows of Harness-1's query table (pat-jj/harness-1-train-data) as tasks of the curated set.

All columns are text. Facts are JSON, the Python literal that older exports hold, or native lists. Ids of the train and
of the test split share one name space, so a row is known by its split, stage and id, never by the id alone.
"""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.data.question_files import Unusable
from jaxsearchrl.errors import UserError
from jaxsearchrl.raw_rows import read_rows
from jaxsearchrl.strict_json import parse
from jaxsearchrl.tasks.curated.data import Fact, Task
from jaxsearchrl.text import well_formed

DATA_SET = "sec"
_NEEDED = (("dataset_name",), ("query_id",), ("query",), ("document_ids_json", "document_ids"))
_OPTIONAL = ("stage", "answer")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "", "none", "null")


@dataclass(frozen=True)
class Query:
    """A question with its facts. `family` is what its variants, which ask for more or fewer facts, have in common."""

    task: Task
    family: str

    @property
    def gold(self) -> frozenset[str]:
        """The ids of all chunks that support any fact."""
        return frozenset(chunk_id for fact in self.task.facts for chunk_id in fact.chunk_ids)


def family_of(query_id: str) -> str:
    """`query_id` without the number of the variant."""
    family, _, variant = query_id.rpartition("_")
    return family if family and variant.isdigit() else query_id


def read_queries(paths: Sequence[Path], stage: str = "") -> tuple[list[Query], Counter[str]]:
    """The SEC questions of a split's files in their order, and how many rows make none, by reason.

    stage: only rows of this stage ("" takes all, of a file that has no stages too).
    Raises UserError naming file, row and column of what cannot be read.
    """
    queries: list[Query] = []
    left_out = Counter[str]()
    for path in paths:
        for where, row in read_rows(path, _NEEDED + ((("stage",),) if stage else ()), _OPTIONAL):
            try:
                queries.append(_query(row, stage, where))
            except Unusable as reason:
                left_out[str(reason)] += 1
    return queries, left_out


def _query(row: Mapping[str, Any], stage: str, where: str) -> Query:
    if stage and row["stage"] != stage:
        raise Unusable(f"stage {row['stage']}")
    if row["dataset_name"] != DATA_SET:
        raise Unusable(f"data set {row['dataset_name']}")
    query_id, text = text_of(row, "query_id", where), text_of(row, "query", where)
    if not query_id:
        raise UserError(f'{where}: "query_id" is empty; every question needs its own id')
    if not text:
        raise Unusable("no question")
    column = "document_ids_json" if row.get("document_ids_json") is not None else "document_ids"
    facts = read_facts(row.get(column), f'{where}: "{column}"')
    if not facts:
        raise Unusable("no facts")
    return Query(Task(query_id, text, facts, text_of(row, "answer", where)), family_of(query_id))


def text_of(row: Mapping[str, Any], column: str, where: str) -> str:
    """A text, stripped; "" where there is none. Numbers become text. Raises UserError for anything else."""
    value = row.get(column)
    if value is None:
        return ""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise UserError(f'{where}: "{column}" must be a text, found {type(value).__name__}')
    return well_formed(str(value)).strip()


def read_facts(value: Any, where: str) -> tuple[Fact, ...]:
    """The facts of a row, whichever way they are spelled.

    Raises UserError, starting with `where`, for what is no list of facts; Unusable for a fact without chunks.
    """
    return tuple(_fact(item, f"{where}, fact {number}") for number, item in enumerate(as_list(value, where), start=1))


def as_list(value: Any, where: str) -> list[Any]:
    """A list that is one, or that a text holds as JSON or as a Python literal. Raises UserError."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    if isinstance(value, str):
        value = _literal(value, where)
    if not isinstance(value, list | tuple):
        raise UserError(f"{where} must hold a list, found {type(value).__name__}")
    return list(value)


def _literal(text: str, where: str) -> Any:
    try:
        return parse(text)
    except ValueError as not_json:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise UserError(f"{where} is neither JSON ({not_json}) nor a Python literal: {text[:60]!r}") from None


def _fact(item: Any, where: str) -> Fact:
    if isinstance(item, str):
        raise UserError(f"{where} is a document id ({item[:60]!r}), not a fact: this is another data set than SEC")
    if not isinstance(item, Mapping) or "chunk_ids" not in item:
        raise UserError(f'{where} must be an object with "fact", "chunk_ids" and "is_final_answer", found {item!r:.60}')
    chunk_ids = as_list(item["chunk_ids"], f"{where}, chunk_ids")
    if not all(isinstance(chunk_id, str) and chunk_id.strip() for chunk_id in chunk_ids):
        raise UserError(f"{where}: chunk_ids must be texts that are not blank, found {chunk_ids!r:.60}")
    if not chunk_ids:
        raise Unusable("a fact without chunks")
    fact = item.get("fact")
    if fact is not None and not isinstance(fact, str):
        raise UserError(f'{where}: "fact" must be a text, found {type(fact).__name__}')
    final = str(item.get("is_final_answer")).strip().lower()
    if final not in _TRUE + _FALSE:
        raise UserError(f'{where}: "is_final_answer" must be true or false, found {final[:60]!r}')
    words = well_formed(fact or "").strip() or "(not in words)"
    return Fact(words, tuple(dict.fromkeys(chunk_ids)), final in _TRUE)
