import gzip
import json
import os

import pyarrow
import pytest
from pyarrow import parquet

from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.corpus_files import find_files, read_file
from jaxsearchrl.search.options import IndexOptions

_DEFAULTS = IndexOptions()


def _rows(corpus, options=_DEFAULTS, on_bytes=lambda raw: None):
    return [row for file in find_files(corpus)[0] for row in read_file(file, options, on_bytes)]


def _read(path, options=_DEFAULTS):
    return [document for _, document in _rows(path, options)]


def _fault(tmp_path, line):
    path = tmp_path / "c.jsonl"
    good = b'{"id": "a", "text": "x"}\n'
    path.write_bytes(good + (line if isinstance(line, bytes) else line.encode()) + b"\n")
    with pytest.raises(UserError) as error:
        _read(path)
    assert f"{path}:2" in str(error.value)
    return str(error.value)


def test_both_spellings_give_the_same_document(tmp_path):
    path = tmp_path / "c.jsonl"
    rows = [
        {"id": "1", "title": "Owl", "text": "Owls fly."},
        {"_id": "1", "title": "Owl", "text": "Owls fly.", "metadata": {}},
        {"id": "1", "contents": '"Owl"\nOwls fly.'},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _read(path) == [Document("1", "Owl", "Owls fly.")] * 3


@pytest.mark.parametrize("contents", ["no title", "unquoted\nfirst line", '"quoted, but no second line"', '"\nx'])
def test_contents_without_a_quoted_first_line_stay_whole(tmp_path, contents):
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"id": "1", "contents": contents}))
    assert _read(path) == [Document("1", "", contents)]


def test_ids_stay_as_given(tmp_path):
    path = tmp_path / "c.jsonl"
    ids = ["007", "7", "a/b c", "é", "e\u0301", " 7", "x" * 512]
    path.write_text("".join(json.dumps({"id": i, "text": ""}) + "\n" for i in ids))
    assert [document.id for document in _read(path)] == ids


def test_byte_order_mark_and_blank_lines_are_no_documents_and_lines_keep_their_numbers(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "text": "x"}\r\n\r\n{"id": "b", "text": "y"}\n\n')
    seen = []
    rows = _rows(path, on_bytes=seen.append)
    assert [(place, document.id) for place, document in rows] == [(f"{path}:1", "a"), (f"{path}:3", "b")]
    assert b"".join(seen) == path.read_bytes()


def test_a_wrong_key_is_named_with_the_key_wanted(tmp_path):
    message = _fault(tmp_path, '{"id": "b", "body": "x"}')
    assert 'key "text" or "contents" or "document_text" is missing; found id, body' in message
    message = _fault(tmp_path, '{"idx": "b", "text": "x"}')
    assert 'key "id" or "_id" or "chunk_id" is missing' in message
    assert 'what "idx" holds? Then rename that' in message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": 7, "text": "x"}', 'write "7"'),
        ('{"id": true, "text": "x"}', "bool"),
        ('{"id": null, "text": "x"}', "NoneType"),
        ('{"id": "", "text": "x"}', "empty"),
        ('{"id": "' + "é" * 257 + '", "text": "x"}', "514 bytes"),
        ('{"id": "\\ud800", "text": "x"}', "surrogate"),
        ('{"id": "b", "text": 5}', '"text" must be a string, found int'),
        ('{"id": "b", "text": null}', '"text" must be a string'),
        ('{"id": "b", "title": ["x"], "text": ""}', '"title" must be a string, found list'),
        ('["b", "x"]', "list"),
        ('{"id": "b", "text": "cut', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"id": "b", "text": "x", "text": "y"}', 'the key "text" stands twice'),
        ('{"id": "b", "_id": "c", "text": "x"}', 'both "id" and "_id"'),
        (b'{"id": "b", "text": "\xff"}', "UTF-8"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_reason(tmp_path, line, says):
    assert says in _fault(tmp_path, line)


def test_a_compressed_corpus_is_refused_with_the_fix(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(gzip.compress(b'{"id": "a", "text": "x"}\n'))
    with pytest.raises(UserError, match=r"c\.jsonl:1: .*gzip; unpack it"):
        _read(path)


def test_lone_surrogates_in_text_are_replaced_and_pairs_kept(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "a", "text": "x \\ud800 y \\ud83d\\ude00"}')
    assert _read(path)[0].text == "x \ufffd y 😀"


_LINES = [json.dumps({"id": str(n), "title": f"t{n}", "text": f"text {n} é"}) + "\n" for n in range(500)]


def _pack(kind, data):
    if kind == "gz":  # two members, as `cat a.gz b.gz` makes
        return gzip.compress(data[:999]) + gzip.compress(data[999:])
    return b"".join(pyarrow.compress(part, "zstd", asbytes=True) for part in (data[:999], data[999:]))


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_lines_are_the_same_lines(tmp_path, kind):
    plain, packed = tmp_path / "c.jsonl", tmp_path / f"c.jsonl.{kind}"
    plain.write_text("".join(_LINES))
    packed.write_bytes(_pack(kind, plain.read_bytes()))
    seen = []
    rows = _rows(packed, on_bytes=seen.append)
    assert b"".join(seen) == packed.read_bytes()
    assert [document for _, document in rows] == _read(plain)
    assert rows[-1][0] == f"{packed}:500"
    packed.write_bytes(packed.read_bytes()[:-4])
    with pytest.raises(UserError, match=rf"c\.jsonl\.{kind}: damaged or cut off"):
        _read(packed)


def _write_parquet(path, rows, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)


def test_shards_of_parquet_are_read_in_the_order_of_their_names(tmp_path):
    for shard in (1, 0, 10, 2):
        rows = [{"id": f"{shard}_{n}", "text": f"text {n}", "other": n} for n in range(3)]
        _write_parquet(tmp_path / "c" / f"train-{shard:05}.parquet", rows, row_group_size=2)
    assert [document.id for document in _read(tmp_path / "c")] == [f"{s}_{n}" for s in (0, 1, 2, 10) for n in range(3)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"docid": "a", "text": "x"}], 'column "id" or "_id" or "chunk_id" is missing; found docid, text'),
        ([{"id": "a", "text": "x"}, {"id": "", "text": "x"}], 'row 2: "id" is empty'),
        ([{"id": 7, "text": "x"}], 'row 1: "id" is the number 7; ids are strings'),
        ([{"id": "a", "text": "x"}, {"id": "b", "text": None}], 'row 2: "text" must be a string, found NoneType'),
    ],
)
def test_a_bad_row_of_parquet_is_refused_with_file_row_and_reason(tmp_path, rows, says):
    _write_parquet(tmp_path / "x.parquet", rows)
    with pytest.raises(UserError) as error:
        _read(tmp_path / "x.parquet")
    assert f"x.parquet: {says}" in str(error.value)


_FILING = "Company: Apple Inc.\nFiling Date: 2025-05-01\nForm: 10-Q\nChunk 3\n---\nbody"
_METADATA = '{"source": "a", "ticker": "AAPL", "chunk_i": 3, "form_type": "10-Q", "filing_date": "2025-05-01"}'


@pytest.mark.parametrize(
    ("text", "metadata", "title"),
    [
        (_FILING, _METADATA, "Apple Inc. · 10-Q · 2025-05-01"),
        ("no header", _METADATA, "AAPL · 10-Q · 2025-05-01"),
        ("1\n2\n3\n4\nCompany: too late", '{"form_type": "8-K"}', "SEC filing · 8-K"),
        ("Company:\n", '{"form_type": 8, "ticker": null}', ""),
        ("a web page", '{"source": "https://x"}', ""),
        ("a web page", None, ""),
        (_FILING, "", "Apple Inc."),
    ],
)
def test_the_title_of_a_filing_is_made_as_published(tmp_path, text, metadata, title):
    _write_parquet(tmp_path / "c.parquet", [{"chunk_id": "a_3", "document_text": text, "metadata_json": metadata}])
    assert _read(tmp_path / "c.parquet") == [Document("a_3", title, text)]


def test_metadata_that_is_no_object_is_refused_by_row(tmp_path):
    _write_parquet(tmp_path / "c.parquet", [{"chunk_id": "a", "document_text": "", "metadata_json": "['x']"}])
    with pytest.raises(UserError, match=r"c\.parquet: row 1, metadata_json: not JSON"):
        _read(tmp_path / "c.parquet")


def test_a_chunk_id_beside_an_id_is_only_a_further_key(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"id": "a", "chunk_id": 7, "text": "x", "document_text": 9}')
    assert _read(tmp_path / "c.jsonl") == [Document("a", "", "x")]


def test_a_folder_of_notes_becomes_chunks_that_say_file_and_number(tmp_path):
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / ".git").mkdir()
    (notes / ".git" / "HEAD.txt").write_text("hidden")
    (notes / "b.md").write_text(
        "\ufeff```\n# no heading\n```\n## The  heading ##\none two\nthree four five", encoding="utf-8"
    )
    (notes / "deep" / "a.TXT").write_text("# plain\nword")
    (notes / "a b.md").write_text("")
    (notes / "cat.jpg").write_bytes(b"\xff")
    files, others = find_files(notes)
    assert [file.name for file in files] == ["a b.md", "b.md", "deep/a.TXT"]
    assert others == ["cat.jpg"]
    read = _read(notes, IndexOptions(chunk_words=8, chunk_overlap=2))
    assert read == [
        Document("a b.md#1", "a b", ""),
        Document("b.md#1", "The  heading", "```\n# no heading\n```\n## The  heading"),
        Document("b.md#2", "The  heading", "The  heading ##\none two\nthree four five"),
        Document("deep/a.TXT#1", "a", "# plain\nword"),
    ]


def test_a_note_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.md").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"a\.md: not UTF-8 text \(byte 4\)"):
        _read(tmp_path)
    (tmp_path / "a.md").unlink()
    (tmp_path / os.fsdecode(b"\xff.md")).write_text("x")
    with pytest.raises(UserError, match="not valid Unicode"):
        _read(tmp_path)


def test_a_folder_without_a_corpus_or_with_two_kinds_is_refused(tmp_path):
    (tmp_path / "cat.jpg").write_text("")
    with pytest.raises(UserError, match=r"no file of a corpus in it \(\.jsonl"):
        find_files(tmp_path)
    for name in ("README.md", "b.jsonl", "a.jsonl.gz"):
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=r"more than one kind: JSON lines \(a\.jsonl\.gz\), text \(README\.md\)"):
        find_files(tmp_path)
