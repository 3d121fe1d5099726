"""Task files: what loads, and what is refused with file, line and key."""

import gzip
import json

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document
from jaxsearchrl.tasks.curated.data import Fact, Task, check_gold, load_tasks

GOOD = {"id": "q1", "query": "who?", "facts": [{"fact": "f", "chunk_ids": ["a", "b", "a"], "is_final_answer": True}]}


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_task_is_read_as_it_stands(tmp_path):
    second = {"id": "007", "query": "x\u2028y", "facts": [{"fact": "g", "chunk_ids": ["1.0"]}], "answer": "z"}
    path = write(tmp_path / "t.jsonl", "\ufeff" + json.dumps(GOOD), "", json.dumps(second, ensure_ascii=False))
    assert load_tasks(path) == [
        Task("q1", "who?", (Fact("f", ("a", "b"), True),)),
        Task("007", "x\u2028y", (Fact("g", ("1.0",)),), "z"),
    ]


def test_a_null_answer_is_no_answer(tmp_path):
    assert load_tasks(write(tmp_path / "t.jsonl", {**GOOD, "answer": None}))[0].answer == ""


FACT = GOOD["facts"][0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"id": "q1", ', "not JSON ("),
        ("[1]", "expected a JSON object, found list"),
        ({"query": "who?", "facts": [FACT]}, 'key "id" is missing; found query, facts'),
        ({**GOOD, "id": 7}, '"id" must be a str, found int'),
        ({**GOOD, "id": " "}, '"id" is empty'),
        ({**GOOD, "query": ""}, '"query" is empty'),
        ({**GOOD, "facts": []}, '"facts" is empty'),
        ({**GOOD, "facts": ["f"]}, "facts[0]: expected a JSON object"),
        ({**GOOD, "facts": [FACT, {"fact": "f", "chunk_ids": []}]}, 'facts[1]: "chunk_ids" must be a list of at least'),
        ({**GOOD, "facts": [{"fact": "f"}]}, 'facts[0]: key "chunk_ids" is missing'),
        ({**GOOD, "facts": [{"fact": "f", "chunk_ids": [None]}]}, '"chunk_ids" must be a list of at least one id'),
        ({**GOOD, "facts": [{"fact": "f", "chunk_ids": "ab"}]}, '"chunk_ids" must be a list, found str'),
        ({**GOOD, "facts": [{**FACT, "is_final_answer": 1}]}, '"is_final_answer" must be a bool'),
        ({**GOOD, "facts": [{**FACT, "is_final_anwser": True}]}, 'did you mean "is_final_answer"?'),
        ({**GOOD, "split": "x"}, 'unknown key "split"; known keys: answer, facts, id, query'),
        ({**GOOD, "answer": 3}, '"answer" must be a str'),
        (GOOD, 'id "q1" was used before'),
        ('{"id": "q2", "id": "q3", "query": "who?", "facts": []}', 'the key "id" stands twice'),
    ],
)
def test_a_faulty_line_is_refused_by_file_line_and_key(tmp_path, row, words):
    path = write(tmp_path / "t.jsonl", GOOD, row)
    with pytest.raises(UserError) as error:
        load_tasks(path)
    assert str(error.value).startswith(f"{path}:2")
    assert words in str(error.value)


def test_a_file_without_tasks_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no task"):
        load_tasks(write(tmp_path / "t.jsonl", ""))
    with pytest.raises(UserError, match=r"cannot read the tasks of .*absent"):
        load_tasks(tmp_path / "absent.jsonl")


def test_a_file_that_is_not_utf8_or_is_compressed_is_refused_with_the_line_and_the_fix(tmp_path):
    path = tmp_path / "t.jsonl"
    line = json.dumps(GOOD).encode() + b"\n"
    path.write_bytes(line + line.replace(b"who?", b"\xe9"))
    with pytest.raises(UserError, match=r"t\.jsonl:2: not UTF-8 text .*save the file as UTF-8"):
        load_tasks(path)
    path.write_bytes(gzip.compress(line))
    with pytest.raises(UserError, match=r"t\.jsonl:1: .*gzip; unpack it"):
        load_tasks(path)


class Has:
    """A corpus of known ids."""

    def __init__(self, *ids):
        self.ids = ids

    def read(self, document_id):
        return Document(document_id, "", "") if document_id in self.ids else None

    def grep(self, pattern, k, *, case_sensitive=False):
        raise NotImplementedError


def test_gold_that_the_corpus_lacks_is_counted_and_named():
    tasks = [Task("q1", "?", (Fact("f", ("a", "b")),)), Task("q2", "?", (Fact("g", ("c",)), Fact("h", ("a", "d"))))]
    check_gold(tasks, Has("a", "b", "c", "d"), "t.jsonl")
    with pytest.raises(
        UserError, match=r"^t\.jsonl: the corpus lacks 2 gold chunk ids: b \(task q1\), c \(task q2\); "
    ):
        check_gold(tasks, Has("a", "d"), "t.jsonl")


def test_many_missing_ids_are_counted_in_full_but_named_in_part():
    tasks = [Task("q", "?", (Fact("f", tuple(f"c{i}" for i in range(25))),))]
    with pytest.raises(UserError, match=r"lacks 25 .*c9 \(task q\) and 15 more"):
        check_gold(tasks, Has(), "t.jsonl")
