"""The questions of Search-R1, from a small copy of its files with all that is odd about them."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from jaxsearchrl.data import nq_hotpotqa
from jaxsearchrl.data.__main__ import main
from jaxsearchrl.data.nq_hotpotqa import draw, prepare_nq_hotpotqa
from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.questions import load_questions

FILES = ("train.jsonl", "dev.jsonl", "nq_dev_500.jsonl", "hotpotqa_dev_500.jsonl", "test.jsonl")


@pytest.fixture
def raw(tmp_path, search_r1) -> Path:
    """A folder with both Parquet files."""
    for split, rows in search_r1.splits.items():
        search_r1.write(tmp_path / "raw" / f"{split}.parquet", rows)
    return tmp_path / "raw"


def write_jsonl(path: Path, rows: list) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def prepared(search_r1, tmp_path, train: list, name: str = "odd"):
    """The training questions made of these rows, beside a sound one of each source; and the manifest."""
    rows = [*train, *(search_r1.row(source, 900, "train", "sound?", ["yes"]) for source in ("nq", "hotpotqa"))]
    write_jsonl(tmp_path / name / "train.jsonl", rows)
    write_jsonl(tmp_path / name / "test.jsonl", search_r1.splits["test"])
    manifest = prepare_nq_hotpotqa(str(tmp_path / name), tmp_path / f"{name}-out")
    return load_questions(tmp_path / f"{name}-out" / "train.jsonl")[:-2], manifest


def refusal(search_r1, tmp_path, *train: dict) -> str:
    with pytest.raises(UserError) as error:
        prepared(search_r1, tmp_path, list(train), "bad")
    return str(error.value)


def test_the_files_hold_what_they_are_named_for(raw, tmp_path):
    out = tmp_path / "out"
    manifest = prepare_nq_hotpotqa(str(raw), out)
    questions = {name: load_questions(out / name) for name in FILES}
    assert {path.name for path in out.iterdir()} == {*FILES, "manifest.json"}
    assert [question.id for question in questions["train.jsonl"]] == [
        *(f"nq:train_{n}" for n in range(6)), *(f"hotpotqa:train_{n}" for n in range(5))
    ]  # fmt: skip
    assert len(questions["test.jsonl"]) == 515 + 512 + 5 * 12
    sources = sorted(nq_hotpotqa.SOURCES["test"])
    assert [question.source for question in questions["dev.jsonl"]] == [name for name in sources for _ in range(10)]
    for source in ("nq", "hotpotqa"):
        assert [question.source for question in questions[f"{source}_dev_500.jsonl"]] == [source] * 500
    drawn = [question for name in FILES[1:4] for question in questions[name]]
    assert len(set(drawn)) == 1070  # no question is drawn twice
    assert set(drawn) < set(questions["test.jsonl"])
    assert {name: file["questions"] for name, file in manifest["files"].items()} == {
        name: len(questions[name]) for name in FILES
    }
    assert manifest["files"]["train.jsonl"]["sources"] == {"hotpotqa": 5, "nq": 6}
    assert manifest["recipe"]["seed"] == 42
    assert manifest["input"] == {"given": str(raw), "revision": ""}
    assert manifest["dropped"] == {"train": {}, "test": {}}
    assert "drawn from the test pool" in manifest["note"]
    assert json.loads((out / "manifest.json").read_text()) == manifest


def test_dev_is_drawn_by_shuffling_source_after_source_with_one_generator(raw, tmp_path, search_r1):
    prepare_nq_hotpotqa(str(raw), tmp_path / "out")
    rng, wanted = random.Random(42), []
    for source in sorted(nq_hotpotqa.SOURCES["test"]):
        texts = [row["question"] for row in search_r1.splits["test"] if row["data_source"] == source]
        rng.shuffle(texts)
        wanted += texts[:10]
    assert [question.query for question in load_questions(tmp_path / "out/dev.jsonl")] == wanted
    assert draw({"nq": range(600)}, 42) == draw({"nq": list(range(600))}, 42) != draw({"nq": range(600)}, 7)


def test_the_same_input_in_another_form_and_place_gives_the_same_questions(raw, tmp_path, search_r1):
    prepare_nq_hotpotqa(str(raw), tmp_path / "a")
    for split, rows in search_r1.splits.items():
        write_jsonl(tmp_path / "lines" / f"{split}.jsonl", rows)
    prepare_nq_hotpotqa(str(tmp_path / "lines"), tmp_path / "b")
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_second_run_checks_and_another_input_or_seed_is_refused(raw, tmp_path, monkeypatch, search_r1):
    out = tmp_path / "out"
    manifest = prepare_nq_hotpotqa(str(raw), out)
    moved = raw.rename(tmp_path / "moved")
    with monkeypatch.context() as patch:
        patch.setattr(nq_hotpotqa, "read_questions", lambda *_: pytest.fail("read again"))
        assert prepare_nq_hotpotqa(str(moved), out) == manifest
        with pytest.raises(UserError, match="was made with another seed"):
            prepare_nq_hotpotqa(str(moved), out, seed=7)
        search_r1.write(moved / "train.parquet", search_r1.splits["train"][:-1])
        with pytest.raises(UserError, match="was made with another input"):
            prepare_nq_hotpotqa(str(moved), out)


def test_lists_that_were_numpy_arrays_and_ids_that_were_numbers_are_read(tmp_path, search_r1):
    """As pandas writes a frame: arrays in object columns, an index column, and a struct in a struct."""
    answers = [np.array(["a", "b"], dtype=object), np.array([], dtype=object)]
    columns = {
        "id": pyarrow.array(np.array([5, 6])),
        "question": ["one", "two?"],
        "golden_answers": pyarrow.array(answers),
        "data_source": ["nq", "hotpotqa"],
        "reward_model": pyarrow.array([{"ground_truth": {"target": np.array([w], dtype=object)}} for w in "cd"]),
        "__index_level_0__": [0, 0],
    }
    (tmp_path / "raw").mkdir()
    parquet.write_table(pyarrow.table(columns), tmp_path / "raw/train.parquet")
    search_r1.write(tmp_path / "raw/test.parquet", search_r1.splits["test"])
    prepare_nq_hotpotqa(str(tmp_path / "raw"), tmp_path / "out")
    one, two = load_questions(tmp_path / "out/train.jsonl")
    assert (one.id, one.query, one.answers) == ("nq:5", "one?", ("a", "b"))
    assert (two.id, two.query, two.answers) == ("hotpotqa:6", "two?", ("d",))


def test_splits_whose_unused_columns_differ_are_read(raw, tmp_path, search_r1):
    """One schema for both splits cannot hold these."""
    rows = [row | {"metadata": {"context": {"title": ["a"]}}} for row in search_r1.splits["train"]]
    search_r1.write(raw / "train.parquet", rows)
    search_r1.write(raw / "test.parquet", [row | {"metadata": "text"} for row in search_r1.splits["test"]])
    prepare_nq_hotpotqa(str(raw), tmp_path / "out")
    assert len(load_questions(tmp_path / "out/train.jsonl")) == 11


@pytest.mark.parametrize(
    ("columns", "answers"),
    [
        ({"golden_answers": [" Ada ", "ada", "Ada", "", None]}, ("Ada", "ada")),
        ({"golden_answers": "Ada"}, ("Ada",)),
        ({"golden_answers": [1992, "1992", 2.5, ["nested", ["deep"]]]}, ("1992", "2.5", "nested", "deep")),
        ({"golden_answers": 7}, ("7",)),
        ({"golden_answers": [1912.0, -0.0, 1e22]}, ("1912", "0", str(10**22))),
        ({"golden_answers": ["東京", "e\u0301", "\ud83d"]}, ("東京", "e\u0301", "\ufffd")),
        ({"golden_answers": [], "reward_model": {"ground_truth": {"target": ["b"]}}}, ("b",)),
        ({"golden_answers": None, "reward_model": {"ground_truth": ["b", "b"]}}, ("b",)),
        ({"reward_model": {"ground_truth": "b"}}, ("b",)),
    ],
)
def test_answers_are_found_wherever_they_stand(tmp_path, search_r1, columns, answers):
    row = {"id": "train_1", "question": "q?", "data_source": "nq", **columns}
    (question,), _ = prepared(search_r1, tmp_path, [row])
    assert question.answers == answers


def test_numbers_that_are_not_there_are_no_answers(tmp_path, search_r1):
    """A column of numbers with holes, as pandas writes it."""
    row = {"question": "q", "data_source": "nq"}
    rows = [row | {"golden_answers": value} for value in (1992.0, float("nan"), None)]
    rows.append(rows[0] | {"data_source": "hotpotqa"})
    search_r1.write(tmp_path / "raw/train.parquet", rows)
    search_r1.write(tmp_path / "raw/test.parquet", search_r1.splits["test"])
    manifest = prepare_nq_hotpotqa(str(tmp_path / "raw"), tmp_path / "out")
    assert manifest["dropped"]["train"] == {"no answer": 2}


def test_a_question_is_stripped_and_ends_with_a_question_mark(tmp_path, search_r1):
    rows = [
        search_r1.row("nq", n, "train", text, ["a"])
        for n, text in enumerate((" who \n", "who?", "who ? ", "où 東", "誰\uff1f"))
    ]
    questions, _ = prepared(search_r1, tmp_path, rows)
    assert [question.query for question in questions] == ["who?", "who?", "who ?", "où 東?", "誰\uff1f"]


def test_rows_without_question_or_answer_are_left_out_and_counted_by_reason(tmp_path, search_r1, capsys):
    sound = search_r1.row("nq", 0, "train", "sound?", ["yes"])
    nothing = {"golden_answers": [" "], "reward_model": {"ground_truth": {"target": []}}}
    rows = [
        sound | {"question": None},
        sound | {"question": " \t"},
        sound | nothing,
        sound | {"question": "", **nothing},
    ]
    rows += [sound | {"golden_answers": None, "reward_model": None}]
    questions, manifest = prepared(search_r1, tmp_path, rows)
    assert questions == []
    assert manifest["dropped"] == {"train": {"no question": 3, "no answer": 2}, "test": {}}
    assert main(["nq_hotpotqa", f"--input={tmp_path / 'odd'}", f"--output={tmp_path / 'odd-out'}"]) == 0
    assert "train: 3 rows left out: no question\ntrain: 2 rows left out: no answer" in capsys.readouterr().out


def test_ids_are_unique_over_sources_rows_and_splits(tmp_path, search_r1):
    def row(source, id):
        return {"id": id, "question": "q?", "golden_answers": ["a"], "data_source": source}

    rows = [row("nq", "0"), row("hotpotqa", "0"), row("nq", 0), row("nq", "0#2"), row("nq", "0"), row("nq", None)]
    rows += [row("nq", ""), {key: value for key, value in row("nq", 0).items() if key != "id"}, row("nq", "test_3")]
    rows += [row("nq", 0.0), row("nq", " "), row("nq", "\ud800")]
    questions, _ = prepared(search_r1, tmp_path, rows)
    assert [question.id for question in questions] == [
        "nq:0", "hotpotqa:0", "nq:0#2", "nq:0#2#2", "nq:0#3", "nq:train_5", "nq:train_6", "nq:train_7", "nq:test_3",
        "nq:0#4", "nq:train_10", "nq:\ufffd"
    ]  # fmt: skip
    test = load_questions(tmp_path / "odd-out/test.jsonl")
    assert "nq:test_3#2" in {question.id for question in test}
    assert not {question.id for question in test} & {question.id for question in questions}


def test_training_questions_that_dev_asks_too_are_counted(raw, tmp_path, search_r1, capsys):
    prepare_nq_hotpotqa(str(raw), tmp_path / "out")
    dev = load_questions(tmp_path / "out/dev.jsonl")
    asked = [f"  {question.query.upper()} " for question in dev[:3]]
    rows = [search_r1.row("nq", n, "train", text, ["other"]) for n, text in enumerate(asked)]
    _, manifest = prepared(search_r1, tmp_path, rows)
    assert {name: file.get("also_in_train") for name, file in manifest["files"].items()} == {
        "train.jsonl": None, "dev.jsonl": 3, "nq_dev_500.jsonl": 0, "hotpotqa_dev_500.jsonl": 0, "test.jsonl": 3
    }  # fmt: skip
    main(["nq_hotpotqa", f"--input={tmp_path / 'odd'}", f"--output={tmp_path / 'odd-out'}"])
    assert "3 of them are asked in train.jsonl, too" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"data_source": "nq_open"}, "\"data_source\" is 'nq_open'; the train split holds only hotpotqa, nq"),
        ({"data_source": None}, '"data_source" is None'),
        ({"data_source": "musique"}, "the train split holds only hotpotqa, nq"),
        ({"question": 1984}, '"question" must be a text, found int'),
        ({"id": [1]}, '"id" must be a text or a whole number, found list'),
        ({"golden_answers": [True]}, '"golden_answers" holds True; an answer must be a text or a number'),
        ({"golden_answers": {"a": 1}}, "\"golden_answers\" holds {'a': 1}"),
        ({"id": True}, '"id" must be a text or a whole number, found bool'),
        ({"id": 1.5}, '"id" must be a text or a whole number, found float'),
        ({"golden_answers": [], "reward_model": "a"}, '"reward_model" must be an object, found str'),
    ],
)
def test_a_row_that_cannot_be_understood_is_refused_by_file_row_and_column(tmp_path, search_r1, columns, words):
    sound = search_r1.row("nq", 0, "train", "sound?", ["yes"])
    message = refusal(search_r1, tmp_path, sound, sound | columns)
    assert message.startswith(f"{tmp_path / 'bad/train.jsonl'}:2: ")
    assert words in message
    assert not (tmp_path / "bad-out/train.jsonl").exists()


def test_a_parquet_row_is_named_by_its_number(raw, tmp_path, search_r1):
    rows = search_r1.splits["train"]
    search_r1.write(raw / "train.parquet", [*rows[:2], rows[2] | {"data_source": "NQ"}])
    with pytest.raises(UserError, match=r"train\.parquet: row 3: \"data_source\" is 'NQ'"):
        prepare_nq_hotpotqa(str(raw), tmp_path / "out")


def test_columns_of_another_data_set_are_refused(raw, tmp_path, search_r1):
    search_r1.write(raw / "train.parquet", [{"id": "1", "question": "q?", "answers": ["a"], "data_source": "nq"}])
    with pytest.raises(
        UserError, match='column "golden_answers" or "reward_model" is missing; found id, question, ans'
    ):
        prepare_nq_hotpotqa(str(raw), tmp_path / "out")


@pytest.mark.parametrize(("source", "needed"), [("bamboogle", 10), ("nq", 510)])
def test_a_source_with_too_few_questions_is_refused(raw, tmp_path, search_r1, source, needed):
    rows = [row for row in search_r1.splits["test"] if row["data_source"] != source]
    few = [row for row in search_r1.splits["test"] if row["data_source"] == source][: needed - 1]
    search_r1.write(raw / "test.parquet", rows + few)
    with pytest.raises(
        UserError, match=f"{needed - 1} usable questions of {source} in the test split, at least {needed}"
    ):
        prepare_nq_hotpotqa(str(raw), tmp_path / "out")


def test_a_training_split_of_one_source_is_refused(raw, tmp_path, search_r1):
    search_r1.write(raw / "train.parquet", search_r1.splits["train"][:6])
    with pytest.raises(UserError, match="0 usable questions of hotpotqa in the train split"):
        prepare_nq_hotpotqa(str(raw), tmp_path / "out")


def test_the_advice_for_people_without_the_hub_has_files_sizes_and_places(monkeypatch, tmp_path, capsys):
    import huggingface_hub

    def fails(*_, **__):
        raise ConnectionError("no route\nto the host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    monkeypatch.chdir(tmp_path)
    assert main(["nq_hotpotqa", "--input=PeterJinGo/nq_hotpotqa_train", "--output=out"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(
        "error: --input=PeterJinGo/nq_hotpotqa_train: no such file or folder, and the hub did not"
    )
    assert "(ConnectionError: no route)" in message
    for wanted in (
        "train.parquet   169,615 questions, 356 MB",
        "https://huggingface.co/datasets/PeterJinGo",
        "modelscope",
    ):
        assert wanted in message
    assert "python -m jaxsearchrl.data wiki18" in message
    assert list(tmp_path.iterdir()) == []
