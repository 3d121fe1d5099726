"""The passages of Search-R1: published file in, index out."""

import gzip
import json

import pytest

from jaxsearchrl.data.__main__ import main
from jaxsearchrl.data.wiki18 import FILE, prepare_wiki18
from jaxsearchrl.errors import UserError

PASSAGES = [("0", "Brooms", "Ada made brooms from 1843 on."), ("1", 'The "Rope"', "Bela made ropes.")]


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "download" / FILE
    path.parent.mkdir()
    rows = [{"id": id, "contents": f'"{title}"\n{text}'} for id, title, text in PASSAGES]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


@pytest.mark.parametrize("folder", [False, True])
def test_the_published_file_gets_an_index(published, folder, tmp_path):
    index = prepare_wiki18(str(published.parent if folder else published), tmp_path / "wiki")
    assert index.size == 2
    assert [hit.document.id for hit in index.search("ropes", 3)] == ["1"]
    assert index.document(0).title == "Brooms"
    assert (tmp_path / "wiki" / FILE).samefile(published)  # not written a second time


def test_it_goes_on_where_it_was_stopped_and_changes_nothing_when_it_is_done(published, tmp_path, capsys):
    arguments = ["wiki18", f"--input={published}", f"--output={tmp_path / 'wiki'}"]
    assert [main(arguments), main(arguments)] == [0, 0]
    assert capsys.readouterr().out.count("2 passages, index in") == 2


def test_another_file_of_that_name_is_not_replaced(published, tmp_path):
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki" / FILE).write_bytes(b"mine")
    with pytest.raises(
        UserError, match=r"is there and has another size than .*: delete it, or choose another --output"
    ):
        prepare_wiki18(str(published), tmp_path / "wiki")
    assert (tmp_path / "wiki" / FILE).read_bytes() == b"mine"


def test_what_is_not_there_is_an_error_that_says_what_to_download(tmp_path, capsys):
    assert main(["wiki18", f"--input={tmp_path}", f"--output={tmp_path / 'wiki'}"]) == 2
    assert "https://huggingface.co/datasets/PeterJinGo/wiki-18-corpus" in capsys.readouterr().err
