"""Question files: what loads, what is refused with file, line and key, and that what is written is what is read."""

import gzip
import json

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.questions import Question, load_questions, to_row

GOOD = {"id": "nq:test_0", "question": "who made brooms?", "answers": ["Ada", "Ada Byron", "Ada"], "data_source": "nq"}


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_question_is_read_as_it_stands_and_an_answer_once(tmp_path):
    second = {"id": "7", "question": " Où\u2028? ", "answers": ["東京", "tokyo ", "Tokyo"]}
    path = write(tmp_path / "q.jsonl", "\ufeff" + json.dumps(GOOD), "", json.dumps(second, ensure_ascii=False))
    assert load_questions(path) == [
        Question("nq:test_0", "who made brooms?", ("Ada", "Ada Byron"), "nq"),
        Question("7", " Où\u2028? ", ("東京", "tokyo ", "Tokyo")),
    ]
    assert load_questions(write(tmp_path / "n.jsonl", {**GOOD, "data_source": None}))[0].source == ""


def test_what_is_written_is_read_back(tmp_path):
    questions = [Question("a", "q?", ("x", "y"), "nq"), Question("b", "é?", ("1",))]
    assert load_questions(write(tmp_path / "q.jsonl", *map(to_row, questions))) == questions


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"id": "q1", ', "not JSON ("),
        ("[1]", "expected a JSON object, found list"),
        ({"id": "q", "answers": ["a"]}, 'key "question" is missing; found id, answers'),
        ({**GOOD, "id": 7}, '"id" must be a str, found int'),
        ({**GOOD, "id": "q", "question": " "}, '"question" is empty'),
        ({"id": "q", "question": "q?"}, 'key "answers" is missing'),
        ({**GOOD, "answers": []}, '"answers" must be a list of at least one answer'),
        ({**GOOD, "answers": ["a", " "]}, "each a string that is not blank"),
        ({**GOOD, "answers": ["a", 1992]}, "each a string that is not blank"),
        ({**GOOD, "answers": "Ada"}, '"answers" must be a list, found str'),
        ({**GOOD, "data_source": 3}, '"data_source" must be a str'),
        ({**GOOD, "answer": ["a"]}, 'unknown key "answer"; did you mean "answers"?'),
        ({**GOOD, "split": "x"}, 'unknown key "split"; known keys: answers, data_source, id, question'),
        (GOOD, 'id "nq:test_0" was used before; every question needs its own id'),
        ('{"id": "q2", "id": "q3", "question": "who?", "answers": ["a"]}', 'the key "id" stands twice'),
    ],
)
def test_a_faulty_line_is_refused_by_file_line_and_key(tmp_path, row, words):
    path = write(tmp_path / "q.jsonl", GOOD, row)
    with pytest.raises(UserError) as error:
        load_questions(path)
    assert str(error.value).startswith(f"{path}:2")
    assert words in str(error.value)


def test_a_file_without_questions_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no question"):
        load_questions(write(tmp_path / "q.jsonl", ""))
    with pytest.raises(UserError, match=r"cannot read the questions of .*absent"):
        load_questions(tmp_path / "absent.jsonl")
    (tmp_path / "z.jsonl").write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    with pytest.raises(UserError, match=r"z\.jsonl:1: .*gzip; unpack it"):
        load_questions(tmp_path / "z.jsonl")
