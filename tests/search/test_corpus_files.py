import gzip
import json

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.corpus_files import read_corpus


def _read(path):
    return [document for _, document in read_corpus(path, lambda raw: None)]


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
    rows = list(read_corpus(path, seen.append))
    assert [(line, document.id) for line, document in rows] == [(1, "a"), (3, "b")]
    assert b"".join(seen) == path.read_bytes()


def test_a_wrong_key_is_named_with_the_key_wanted(tmp_path):
    message = _fault(tmp_path, '{"id": "b", "body": "x"}')
    assert '"body"' in message
    assert 'no "text"' in message
    assert 'no "id"' in _fault(tmp_path, '{"docid": "b", "text": "x"}')


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
