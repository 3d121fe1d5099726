"""Rows of Parquet and JSONL files: what is read, what is held, and what is refused by file, row and column."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from jaxsearchrl.errors import UserError
from jaxsearchrl.raw_rows import read_rows

NEEDED = (("question",), ("golden_answers", "reward_model"))
ROWS = [
    {"question": "q1?", "golden_answers": ["a", "ä"], "metadata": {"deep": [{"x": 1}]}},
    {"question": None, "golden_answers": [], "metadata": None},
]


def read(path, **more):
    return list(read_rows(path, NEEDED, ("id",), **more))


def test_the_wanted_columns_of_a_parquet_file_are_read_and_no_others(tmp_path, search_r1):
    path = search_r1.write(tmp_path / "t.parquet", ROWS)
    wanted = [{"question": "q1?", "golden_answers": ["a", "ä"]}, {"question": None, "golden_answers": []}]
    assert read(path) == [(f"{path}: row 1", wanted[0]), (f"{path}: row 2", wanted[1])]


def test_every_encoding_of_a_text_is_a_text(tmp_path):
    texts = ["one", "two", "one"]
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string())):
        table = pyarrow.table({"question": pyarrow.array(texts, kind), "golden_answers": [["a"]] * 3})
        parquet.write_table(table, tmp_path / "t.parquet")
        assert [row["question"] for _, row in read(tmp_path / "t.parquet")] == texts


def test_a_jsonl_file_is_read_compressed_or_not(tmp_path):
    lines = "\ufeff" + "\n\n".join(json.dumps(row) for row in ROWS)
    (tmp_path / "t.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for path in (tmp_path / "t.jsonl", tmp_path / "t.jsonl.gz"):
        assert read(path) == [(f"{path}:1", ROWS[0]), (f"{path}:3", ROWS[1])]


def test_a_parquet_file_is_decoded_batch_by_batch(tmp_path, search_r1, monkeypatch):
    path = search_r1.write(tmp_path / "t.parquet", [{"question": f"{n}?", "golden_answers": ["a"]} for n in range(100)])
    iter_batches, decoded = parquet.ParquetFile.iter_batches, []

    def counting(self, *arguments, **options):
        for batch in iter_batches(self, *arguments, **options):
            decoded.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counting)
    rows = read_rows(path, NEEDED, [], batch_rows=10)
    for number in range(1, 101):
        next(rows)
        assert sum(decoded) < number + 10
    assert decoded == [10] * 10


def test_a_missing_column_is_named_with_what_was_found(tmp_path, search_r1):
    path = search_r1.write(tmp_path / "t.parquet", [{"questions": "q?", "golden_answers": ["a"]}])
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value) == (
        f'{path}: column "question" is missing; found questions, golden_answers; '
        'is it what "questions" holds? Then rename that'
    )
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps({"question": "q?", "id": 7}))
    with pytest.raises(UserError, match=r't\.jsonl:2: key "golden_answers" or "reward_model" is missing; found quest'):
        read(path)


def refusal(path, content: bytes, **more) -> str:
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read(path, **more)
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_parquet_file_that_is_none_or_is_cut_off_is_refused_with_the_fix(tmp_path, search_r1):
    path = search_r1.write(tmp_path / "t.parquet", ROWS)
    whole = path.read_bytes()
    assert "damaged or cut off; download it again (after row 0" in refusal(path, whole[:-20])
    assert "damaged or cut off" in refusal(path, whole[:8])
    assert "not a Parquet file; download it again" in refusal(path, b"<!DOCTYPE html><title>Sign in</title>")
    assert "not a Parquet file" in refusal(path, b"")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    assert "git lfs pull" in refusal(path, pointer)


def test_damage_in_the_middle_of_a_parquet_file_is_noticed_where_it_is_reached(tmp_path, search_r1):
    rows = [{"question": f"question {n}?", "golden_answers": ["a"]} for n in range(40)]
    path = search_r1.write(tmp_path / "t.parquet", rows, row_group_size=20, compression="gzip", use_dictionary=False)
    start = parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    whole = path.read_bytes()
    assert "(after row 20: " in refusal(path, whole[: start + 40] + bytes(60) + whole[start + 100 :], batch_rows=10)


def test_faulty_lines_are_refused_with_the_fix(tmp_path):
    line = json.dumps(ROWS[0]).encode() + b"\n"
    assert "t.jsonl:2: not JSON" in refusal(tmp_path / "t.jsonl", line + line[:-5])
    assert "t.jsonl:2: not UTF-8" in refusal(tmp_path / "t.jsonl", line + line.replace(b"q1?", b"\xe9"))
    assert "t.jsonl:1: the file is compressed by gzip" in refusal(tmp_path / "t.jsonl", gzip.compress(line))
    assert "damaged or cut off; download it again" in refusal(tmp_path / "t.jsonl.gz", gzip.compress(line)[:-9])
    assert "damaged or cut off" in refusal(tmp_path / "t.jsonl.gz", line)
    for name in ("t.jsonl", "t.jsonl.gz"):
        assert "git lfs pull" in refusal(tmp_path / name, b"version https://git-lfs.github.com/spec/v1\n")


def test_a_date_that_no_datetime_holds_is_named(tmp_path):
    ids = pyarrow.array([10**15], pyarrow.timestamp("s"))
    parquet.write_table(pyarrow.table({"question": ["q"], "golden_answers": ["a"], "id": ids}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"t\.parquet: damaged .* \(after row 0"):
        read(tmp_path / "t.parquet")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for name in ("absent.parquet", "absent.jsonl"):
        with pytest.raises(UserError, match=rf"{name}: cannot be read"):
            read(tmp_path / name)
