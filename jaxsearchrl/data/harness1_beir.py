"""The drawn questions in the layout of BEIR, for other people's tools: with corpus.jsonl they are such a data set."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxsearchrl.data.harness1_rows import Query


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A JSON object a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_beir(folder: Path, splits: Mapping[str, Sequence[Query]]) -> None:
    """Writes queries.jsonl, and qrels/ and fact_qrels/ of each split. No id may be in two splits."""
    queries = sorted((query.task for part in splits.values() for query in part), key=lambda task: task.id)
    write_lines(folder / "queries.jsonl", ({"_id": task.id, "text": task.query} for task in queries))
    for name in ("qrels", "fact_qrels"):
        (folder / name).mkdir()
    for split, part in splits.items():
        pairs = [(query.task.id, chunk_id) for query in _by_id(part) for chunk_id in sorted(query.gold)]
        lines = ["query-id\tcorpus-id\tscore", *(f"{query_id}\t{chunk_id}\t1" for query_id, chunk_id in pairs)]
        (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
        facts = (
            {
                "query_id": query.task.id,
                "fact_id": number,
                "fact": fact.fact,
                "chunk_ids": list(fact.chunk_ids),
                "is_final_answer": fact.is_final_answer,
            }
            for query in _by_id(part)
            for number, fact in enumerate(query.task.facts)
        )
        write_lines(folder / f"fact_qrels/{split}.jsonl", facts)


def _by_id(queries: Sequence[Query]) -> list[Query]:
    return sorted(queries, key=lambda query: query.task.id)
