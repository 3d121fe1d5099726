"""A task of your own: a folder of Markdown notes, and questions with the sections that answer them.

    python -m jaxsearchrl.main --config=docs/example_task/config.py --workdir=runs/notes

Replace `notes/` and `questions.jsonl` by yours. A section of a note becomes a document, named file.md#Heading; the last
quarter of the questions is kept for evaluation. The model and all sizes are the demo's.
"""

import json
from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config
from jaxsearchrl.errors import UserError

HERE = Path(__file__).resolve().parent
MADE = HERE / "made"  # what this file writes


def get_config() -> Config:
    documents = [section for note in sorted((HERE / "notes").glob("**/*.md")) for section in sections(note)]
    tasks = [task(number, line) for number, line in enumerate((HERE / "questions.jsonl").read_text().splitlines())]
    known = {document["id"] for document in documents}
    for row in tasks:
        for fact in row["facts"]:
            if unknown := set(fact["chunk_ids"]) - known:
                raise UserError(
                    f"questions.jsonl, {row['id']}: no section {sorted(unknown)}; there are {sorted(known)}"
                )
    cut = len(tasks) - max(2, len(tasks) // 4)
    demo = load_config(str(HERE.parents[1] / "configs" / "demo.py"))
    return replace(
        demo,
        name="notes",
        task=replace(
            demo.task,
            corpus=write("corpus.jsonl", documents),
            train_tasks=write("train.jsonl", tasks[:cut]),
            eval_tasks=write("eval.jsonl", tasks[cut:]),
        ),
        warm_start=replace(demo.warm_start, trajectories=6),
    )


def sections(note: Path) -> list[dict[str, str]]:
    """A document for each `## ` heading of a note; its title names the note as well."""
    title, *parts = note.read_text(encoding="utf-8").split("\n## ")
    title, made = title.strip("# \n"), []
    for part in parts:
        heading, _, text = part.partition("\n")
        heading = heading.strip()
        made.append({"id": f"{note.name}#{heading}", "title": f"{title}: {heading}", "text": text.strip()})
    return made


def task(number: int, line: str) -> dict:
    """Each gold section is a thing to find."""
    row = json.loads(line)
    facts = [{"fact": gold, "chunk_ids": [gold]} for gold in row["gold"]]
    return {"id": f"q{number}", "query": row["question"], "facts": facts}


def write(name: str, rows: list[dict]) -> str:
    """Written only when it changed: the index belongs to its corpus's time stamp and bytes."""
    path, text = MADE / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    MADE.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return str(path)
