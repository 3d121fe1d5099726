"""The cut of the corpus: ids, titles, neighbours, the hashed draw by hand, and what is refused by shard and row."""

import hashlib
import json
from pathlib import Path

import pytest

from jaxsearchrl.data.harness1_corpus import (
    Neighbours,
    count_chunks,
    cut_corpus,
    find_ids,
    fraction,
    split_id,
)
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.corpus_files import CorpusFile, read_file
from jaxsearchrl.search.options import IndexOptions

HEAD = "Company: Brell Inc.\nFiling Date: 2025-03-01\nForm: 10-K\nChunk 0\n---\n"


def chunk(chunk_id, text=HEAD + "body", metadata='{"form_type": "10-K", "filing_date": "2025-03-01"}'):
    return {"chunk_id": chunk_id, "document_text": text, "metadata_json": metadata}


@pytest.fixture
def cut(tmp_path, search_r1):
    """Cuts a corpus of shards, given as lists of rows; returns its documents, the counts and the ids."""

    def run(*shards, gold=(), radius=0, share=0.0):
        paths = [search_r1.write(tmp_path / f"train-{n:05d}.parquet", rows) for n, rows in enumerate(shards)]
        out = tmp_path / "corpus.jsonl"
        passed = []
        counts, ids = cut_corpus(
            paths, out, frozenset(gold), radius=radius, share=share, seed=42, advance=passed.append
        )
        assert sum(passed) == count_chunks(paths) == sum(map(len, shards))
        return [document for _, document in read_file(CorpusFile(out, out.name), IndexOptions())], counts, ids

    return run


@pytest.mark.parametrize(
    ("chunk_id", "parts"),
    [
        ("0000320193-24-000081_12", ("0000320193-24-000081", 12)),
        ("a_b_0", ("a_b", 0)),
        ("a_007", ("a", 7)),
        ("plain", ("plain", -1)),
        ("a_x", ("a_x", -1)),
        ("a_-1", ("a_-1", -1)),
        ("a_\u00b2", ("a_\u00b2", -1)),  # a digit, but no number
        ("_5", ("_5", -1)),
    ],
)
def test_an_id_is_a_filing_and_a_number(chunk_id, parts):
    assert split_id(chunk_id) == parts


def test_neighbours_are_of_the_same_filing_and_near():
    near = Neighbours(["f_10", "f_3", "g_0", "odd"], 4)
    assert [number for number in range(20) if f"f_{number}" in near] == list(range(15))  # 0 to 7, and 6 to 14
    assert [number for number in range(20) if f"g_{number}" in near] == [0, 1, 2, 3, 4]
    assert "h_10" not in near
    assert "odd" not in near  # it has no number
    assert "f_x" not in near


def test_an_id_draws_a_fraction_by_its_hash():
    digest = hashlib.blake2b(b"42\x000000320193-24-000081_12", digest_size=8).digest()
    wanted = sum(byte * 256**place for place, byte in enumerate(reversed(digest))) / 2**64
    assert fraction(42, "0000320193-24-000081_12") == wanted
    values = [fraction(42, f"f_{number}") for number in range(10_000)]
    assert abs(sum(values) / 10_000 - 0.5) < 0.01
    assert fraction(7, "f_0") != fraction(42, "f_0")


def test_gold_neighbours_and_drawn_chunks_are_kept_in_their_order(cut):
    rows = [chunk(f"f_{number}") for number in range(30)]
    documents, counts, ids = cut(rows[:13], rows[13:], gold=["f_12", "f_20"], radius=2)
    assert [document.id for document in documents] == [f"f_{n}" for n in (10, 11, 12, 13, 14, 18, 19, 20, 21, 22)]
    assert counts == {"chunks": 10, "gold": 2, "neighbours": 8, "drawn": 0, "repeated": 0}
    assert ids == {document.id for document in documents}
    assert documents[0].title == "Brell Inc. · 10-K · 2025-03-01"
    assert documents[0].text == HEAD + "body"
    documents, counts, _ = cut(rows, gold=["f_12"], radius=0, share=0.3)
    drawn = [f"f_{number}" for number in range(30) if fraction(42, f"f_{number}") < 0.3 and number != 12]
    assert [document.id for document in documents if document.id != "f_12"] == drawn
    assert counts["drawn"] == len(drawn)
    assert cut(rows, share=1.0)[1]["drawn"] == 30


def test_of_chunks_with_one_id_the_first_is_kept(cut):
    documents, counts, _ = cut([chunk("a_1", "first")], [chunk("a_1", "second"), chunk("b_1")], gold=["a_1", "b_1"])
    assert [(document.id, document.text) for document in documents] == [("a_1", "first"), ("b_1", HEAD + "body")]
    assert (counts["chunks"], counts["gold"], counts["repeated"]) == (2, 2, 1)


def test_odd_texts_and_metadata_are_kept(cut):
    rows = [chunk("a_1", "東京 \u2028 \x00", None), chunk("a_2", "", ""), chunk("a_3", "x", '{"ticker": "T"}')]
    documents, _, _ = cut(rows, share=1.0)
    assert [(document.title, document.text) for document in documents] == [
        ("", "東京 \u2028 \x00"),
        ("", ""),
        ("T", "x"),
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (chunk("a_1", None), '"document_text" of a_1 must be a text, found NoneType'),
        (chunk("a_1", metadata="{"), "metadata_json: not JSON"),
        (chunk("a_1", metadata="[1]"), "metadata_json: expected a JSON object, found list"),
        (chunk(None), '"chunk_id" is None, not an id'),
        (chunk(""), "\"chunk_id\" is '', not an id"),
    ],
)
def test_what_cannot_be_used_is_named_by_shard_and_row(cut, row, words):
    with pytest.raises(UserError, match=words) as error:
        cut([chunk("a_0")], [chunk("b_0"), row], share=1.0)
    assert "train-00001.parquet: row 2" in str(error.value)


def test_ids_are_found_wherever_they_are(tmp_path, search_r1):
    shards = [search_r1.write(tmp_path / f"{n}.parquet", [chunk(f"f_{n}"), chunk(f"g_{n}")]) for n in range(3)]
    assert find_ids(shards, frozenset({"f_0", "g_2", "h_0"}), lambda count: None) == {"f_0", "g_2"}


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        find_ids([path], frozenset({"x"}), lambda count: None)
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_shard_that_is_damaged_is_named(tmp_path, search_r1):
    path = search_r1.write(tmp_path / "t.parquet", [chunk(f"f_{n}") for n in range(100)], compression="gzip")
    whole = path.read_bytes()
    assert "cannot be read" in refusal(path, whole[:-20])
    assert "damaged or cut off after row 0; download it again" in refusal(path, whole[:30] + bytes(80) + whole[110:])
    assert "git lfs pull" in refusal(path, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    search_r1.write(path, [{"chunk_id": "a", "text": "b"}])
    with pytest.raises(UserError, match='column "document_text" is missing; found chunk_id, text'):
        count_chunks([path])


def test_json_is_written_as_it_reads(cut, tmp_path):
    cut([chunk("a_1", 'quote " and ü')], share=1.0)
    line = (tmp_path / "corpus.jsonl").read_text("utf-8")
    assert "ü" in line
    assert json.loads(line).keys() == {"_id", "title", "text"}
