"""Question files are written, divided and described line by line."""

import hashlib
import json
import weakref
from collections import Counter

from jaxsearchrl.data.question_files import Unusable, copy_lines, describe, read_questions, write_questions
from jaxsearchrl.tasks.questions import Question, load_questions


def questions(*texts: str, source: str = "nq") -> list[Question]:
    return [Question(f"{source}:{n}", text, ("a",), source) for n, text in enumerate(texts)]


def test_lines_are_numbered_by_source_as_they_are_written(tmp_path):
    mixed = [*questions("é?\u2028", "two?"), *questions("three?", source="popqa"), Question("x", "four?", ("a",), "nq")]
    assert write_questions(tmp_path / "q.jsonl", iter(mixed)) == {"nq": [0, 1, 3], "popqa": [2]}
    assert load_questions(tmp_path / "q.jsonl") == mixed


def test_lines_are_copied_in_the_order_that_is_wanted(tmp_path):
    write_questions(tmp_path / "q.jsonl", questions("0?", "1?", "2?", "3?"))
    copy_lines(tmp_path / "q.jsonl", {tmp_path / "a.jsonl": [3, 0], tmp_path / "b.jsonl": [0, 2]})
    assert [question.query for question in load_questions(tmp_path / "a.jsonl")] == ["3?", "0?"]
    assert [question.query for question in load_questions(tmp_path / "b.jsonl")] == ["0?", "2?"]


def test_a_description_has_sums_sources_and_what_train_asks_too(tmp_path):
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    write_questions(train, [*questions("Who made  brooms?", "one?", "one?"), *questions("two?", source="hotpotqa")])
    write_questions(dev, questions("who made brooms? ", "Two?", "three?", source="popqa"))
    assert describe(train, [dev]) == {
        "train.jsonl": {
            "sha256": hashlib.sha256(train.read_bytes()).hexdigest(),
            "questions": 4,
            "sources": {"hotpotqa": 1, "nq": 3},
        },
        "dev.jsonl": {
            "sha256": hashlib.sha256(dev.read_bytes()).hexdigest(),
            "questions": 3,
            "sources": {"popqa": 3},
            "also_in_train": 2,
        },
    }


def test_rows_that_make_no_question_are_counted_and_the_others_keep_their_numbers_over_files(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text("".join(json.dumps({"q": word}) + "\n" for word in ("one", "", "two")))

    def make(number, row, where):
        if not row["q"]:
            raise Unusable("no word")
        return Question(str(number), where.rpartition("/")[2], (row["q"],))

    found, dropped = read_questions(paths, (("q",),), [], make)
    assert [(question.id, question.query) for question in found] == [
        ("0", "a.jsonl:1"), ("2", "a.jsonl:3"), ("3", "b.jsonl:1"), ("5", "b.jsonl:3"),
    ]  # fmt: skip
    assert dropped == Counter({"no word": 2})


def test_one_question_is_held_at_a_time(tmp_path):
    """Between the row that is read and the line that is written nothing gathers."""
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(json.dumps({"q": f"{n}?"}) + "\n" for n in range(500)))
    alive: weakref.WeakSet[Question] = weakref.WeakSet()
    most = 0

    def make(number, row, where):
        nonlocal most
        question = Question(str(number), row["q"], ("a",), "nq")
        alive.add(question)
        most = max(most, len(alive))
        return question

    found, _ = read_questions([path], (("q",),), [], make)
    assert write_questions(tmp_path / "q.jsonl", found) == {"nq": list(range(500))}
    assert most <= 2  # the one that is made and the one that was just written
