"""Records are read where they stand, whatever the compression, and a file at work or broken shows what it has."""

import gzip
import random
from dataclasses import asdict

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.records import read_file, records_path, to_json_line, write_records
from jaxsearchrl.viewer import record_file
from jaxsearchrl.viewer.record_file import RecordFile
from tests.viewer.conftest import episode, step_of

NOISE = random.Random(0)  # hardly compressible, so that places in the file and in its text go together
RECORDS = [episode(attempt=n, uid=n, query=f"{n} {NOISE.randbytes(n * 997 % 2500).hex()}") for n in range(60)]
LINES = [to_json_line(record).encode() + b"\n" for record in RECORDS]


@pytest.fixture(params=["one member", "a member each", "members across lines", "plain"])
def path(request, tmp_path, monkeypatch):
    """The same 60 records (about 300 kB), with a state of the decompressor kept every 20 kB."""
    monkeypatch.setattr(record_file, "_READ", 1 << 9)
    monkeypatch.setattr(record_file, "_BETWEEN_STATES", 20_000)
    data = b"".join(LINES)
    if request.param == "one member":
        write_records(tmp_path, "train", 1, RECORDS)
        return records_path(tmp_path, "train", 1)
    path = tmp_path / ("a.jsonl" if request.param == "plain" else "a.jsonl.gz")
    pieces = LINES if request.param == "a member each" else [data[i : i + 7001] for i in range(0, len(data), 7001)]
    path.write_bytes(data if request.param == "plain" else b"".join(map(gzip.compress, pieces)))
    return path


def test_every_record_is_found_in_any_order(path):
    file = RecordFile(path)
    for number in (60, 1, 31, 2, 59, *range(1, 61)):
        assert file.record(number) == RECORDS[number - 1]
    assert len(file.contents().restarts) > 5
    assert [s.query for s in file.contents().summaries] == [r.query for r in RECORDS]


def test_a_record_is_read_without_what_stands_before_it(path, monkeypatch):
    file = RecordFile(path)
    file.contents()
    read = []
    blocks = record_file._blocks

    def counted(*arguments):
        for place, data in blocks(*arguments):
            read.append(len(data))
            yield place, data

    monkeypatch.setattr(record_file, "_blocks", counted)
    file.record(60)
    assert sum(read) < 60_000 < sum(map(len, LINES))


def test_a_summary_is_the_same_with_and_without_the_shortcut(monkeypatch):
    line = to_json_line(episode(gold={"tokens": [7], "facts": []})).encode()
    fields = record_file._fields(line)
    whole = asdict(episode(gold={"tokens": [7], "facts": []}))
    assert fields["gold"] == whole["gold"]
    short = record_file._fields(LINES[0])
    assert (short["tokens"], short["sample_logprobs"]) == ([], [])
    assert short["query"] == RECORDS[0].query
    assert [turn["tokens"] for turn in short["turns"]] == [[4, 7], [8, 10]]


def test_a_half_written_last_line_is_left_out_until_it_is_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES[0] + LINES[1][:100])
    file = RecordFile(path)
    assert len(file.contents().summaries) == 1
    assert "line 2 is not whole" in file.contents().faults[0]
    path.write_bytes(LINES[0] + LINES[1])
    assert file.known() is None
    assert len(file.contents().summaries) == 2
    assert file.contents().faults == ()
    assert file.record(2) == RECORDS[1]


def test_a_cut_or_broken_gzip_file_gives_what_stands_before(tmp_path):
    whole = gzip.compress(b"".join(LINES))
    for name, data in (("cut", whole[: len(whole) // 2]), ("broken", whole[:3000] + b"\xff" * 500 + whole[3500:])):
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(data)
        file = RecordFile(path)
        contents = file.contents()
        assert len(contents.faults) == 1
        assert len(contents.summaries) < 60
        assert all(file.record(s.number) == RECORDS[s.number - 1] for s in contents.summaries)


def test_all_that_stands_before_a_damage_is_read(tmp_path):
    whole = gzip.compress(b"".join(LINES))
    path = tmp_path / "a.jsonl.gz"
    cut = len(whole) * 9 // 10
    path.write_bytes(whole[:cut] + b"\xff" * 200 + whole[cut + 200 :])
    file = RecordFile(path)
    read = [summary.number for summary in file.contents().summaries]
    before = sum(map(len, LINES)) * 0.88  # of the text; it hardly compresses
    assert read == list(range(1, len(read) + 1))
    assert sum(map(len, LINES[: len(read) + 1])) > before
    assert "damaged at byte" in file.contents().faults[-1]
    assert file.record(read[-1]) == RECORDS[read[-1] - 1]
    assert file.containing("who made brooms") == set(read)


def test_text_is_looked_for_beside_broken_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES[0] + b"no json brooms\n" + b'{"query":"brooms"}\n' + LINES[1] + LINES[2][:300])
    assert RecordFile(path).containing("BROOMS first") == {1, 4}
    path.write_bytes(b"nothing\n")
    assert RecordFile(path).containing("nothing") == set()


def test_a_broken_line_hides_no_other(tmp_path):
    path = tmp_path / "a.jsonl"
    wrong = [b"{}\n", b"no json\n", LINES[1].replace(b'"schema":1', b'"schema":9'), b"[" * 100_000 + b"\n", b"\xff\n"]
    path.write_bytes(LINES[0] + b"".join(wrong) + LINES[2])
    file = RecordFile(path)
    assert [s.number for s in file.contents().summaries] == [1, 7]
    assert [fault.split(" is no")[0] for fault in file.contents().faults] == [f"line {n}" for n in range(2, 7)]
    assert file.record(7) == RECORDS[2]
    with pytest.raises(UserError, match="line 3: no such record"):
        file.record(3)


def test_text_is_found_in_questions_calls_and_answers(tmp_path):
    write_records(tmp_path, "train", 1, step_of(1))
    file = RecordFile(records_path(tmp_path, "train", 1))
    assert file.containing("Q2: WHO") == {4, 5, 6}
    assert file.containing("of KILNS.") == {1, 2, 3, 4, 5, 6}
    assert file.containing("document_ids") == {1, 2, 3, 4, 5, 6}
    assert file.containing("no such words") == set()


def test_the_whole_reader_agrees(path):
    file = RecordFile(path)
    assert read_file(path) == [file.record(number) for number in range(1, 61)]
