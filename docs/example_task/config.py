"""A task of your own: a folder of Markdown notes, and questions with the sections that answer them.

    python -m jaxsearchrl.main --config=docs/example_task/config.py --workdir=runs/notes

Replace `notes/` and `questions.jsonl` by yours, here or in a copy of this folder. A section of a note becomes a
document, named file.md#Heading; the last quarter of the questions is kept for evaluation. The model and all sizes are
the demo's, whose file is looked for from where the command runs.
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
    lines = (HERE / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [task(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    known = {document["id"] for document in documents}
    for row in tasks:
        for fact in row["facts"]:
            if unknown := set(fact["chunk_ids"]) - known:
                raise UserError(
                    f"questions.jsonl, line {row['id']}: no section {sorted(unknown)}; there are {sorted(known)}"
                )
    cut = len(tasks) - max(2, len(tasks) // 4)
    demo = load_config("configs/demo.py")
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
    """A document for each `## ` heading of a note, and one, file.md#, for what stands before the first."""
    beginning, *parts = ("\n" + note.read_text(encoding="utf-8")).split("\n## ")
    first, _, rest = beginning.strip().partition("\n")
    title, parts = (first[2:].strip(), [f"\n{rest}", *parts]) if first[:2] == "# " else (note.stem, [beginning, *parts])
    name, made = note.relative_to(HERE / "notes"), []
    for part in parts:
        heading, _, text = part.partition("\n")
        heading, text = heading.strip(), text.strip()
        if text:
            made.append({"id": f"{name}#{heading}", "title": f"{title}: {heading}" if heading else title, "text": text})
    return made


def task(number: int, line: str) -> dict:
    """Each gold section is a thing to find."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"questions.jsonl, line {number}: not JSON ({error})") from error
    facts = [{"fact": gold, "chunk_ids": [gold]} for gold in row["gold"]]
    return {"id": str(number), "query": row["question"], "facts": facts}


def write(name: str, rows: list[dict]) -> str:
    """Written only when it changed: the index belongs to its corpus's time stamp and bytes."""
    path, text = MADE / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    MADE.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return str(path)
