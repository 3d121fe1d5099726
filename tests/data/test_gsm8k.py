"""GSM8K: the gold number, what is held out, and what is refused."""

import pytest

from jaxsearchrl.data.__main__ import main
from jaxsearchrl.data.gsm8k import prepare_gsm8k
from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.questions import load_questions


def row(number: int) -> dict:
    return {
        "question": f" Ann has {number} apples. How many? ",
        "answer": f"<<{number}+1={number + 1}>>\n#### {number + 1}",
    }


@pytest.fixture
def raw(tmp_path, search_r1):
    """A folder as the hub lays it out."""
    search_r1.write(tmp_path / "raw/main/train-00000-of-00001.parquet", [row(n) for n in range(205)])
    search_r1.write(tmp_path / "raw/main/test-00000-of-00001.parquet", [row(n) for n in range(1000, 1003)])
    return tmp_path / "raw"


def test_dev_is_held_out_of_train_and_nothing_is_lost(raw, tmp_path):
    manifest = prepare_gsm8k(str(raw), tmp_path / "out")
    train, dev, test = (load_questions(tmp_path / "out" / f"{name}.jsonl") for name in ("train", "dev", "test"))
    assert (len(train), len(dev), len(test)) == (5, 200, 3)
    assert sorted(int(question.id.partition("train_")[2]) for question in train + dev) == list(range(205))
    assert [question.id for question in train] == sorted((q.id for q in train), key=lambda id: int(id[12:]))
    assert test[0].query == "Ann has 1000 apples. How many?"
    assert (test[0].id, test[0].answers, test[0].source) == ("gsm8k:test_0", ("1001",), "gsm8k")
    assert {name: file["questions"] for name, file in manifest["files"].items()} == {
        "train.jsonl": 5, "dev.jsonl": 200, "test.jsonl": 3
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*manifest["files"], "manifest.json"}
    assert "held out of train.jsonl" in manifest["note"]


def test_the_draw_follows_the_seed(raw, tmp_path):
    for name, seed in (("a", 42), ("b", 42), ("c", 7)):
        prepare_gsm8k(str(raw), tmp_path / name, seed)
    one, same, other = ((tmp_path / name / "dev.jsonl").read_bytes() for name in "abc")
    assert one == same != other


def test_rows_that_cannot_be_used_are_counted_and_too_few_are_refused(raw, tmp_path, search_r1, capsys):
    bad = [{"question": None, "answer": "#### 1"}, {"question": "q", "answer": "1"}, {"question": "q", "answer": None}]
    search_r1.write(raw / "main/test-00000-of-00001.parquet", [*bad, row(1)])
    assert main(["gsm8k", f"--input={raw}", f"--output={tmp_path / 'out'}"]) == 0
    output = capsys.readouterr().out
    assert "test: 1 rows left out: no question\ntest: 2 rows left out: no number after ####" in output
    assert "dev.jsonl                     200 questions: gsm8k 200" in output
    search_r1.write(raw / "main/train-00000-of-00001.parquet", [row(n) for n in range(200)])
    with pytest.raises(UserError, match="200 usable questions to train on and 1 to test on; at least 201 and 1"):
        prepare_gsm8k(str(raw), tmp_path / "few")


def test_a_column_of_another_type_is_named(raw, tmp_path, search_r1):
    search_r1.write(raw / "main/test-00000-of-00001.parquet", [{"question": "q", "answer": 72}])
    with pytest.raises(UserError, match=r'test-00000-of-00001\.parquet: row 1: "answer" must be a text, found int'):
        prepare_gsm8k(str(raw), tmp_path / "out")


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    assert all(name in output for name in ("demo", "nq_hotpotqa", "gsm8k"))
