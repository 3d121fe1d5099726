import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.search import store
from jaxsearchrl.search.contract import Document

_ROWS = [(n + 1, Document(i, "", f"text of {i}")) for n, i in enumerate(["b", "a", "c"])]


def test_ids_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_hash", lambda document_id: 7)
    assert store.write_store(tmp_path, tmp_path / "c.jsonl", _ROWS) == 3
    read = store.DocumentStore(tmp_path)
    assert [read.ordinal(i) for i in ["b", "a", "c", "d"]] == [0, 1, 2, None]


def test_a_repeated_id_is_found_among_many_others(tmp_path):
    rows = [(n, Document(f"id {n % 999}", "", "")) for n in range(1, 1001)]
    with pytest.raises(UserError, match=r"c\.jsonl:1000: the id 'id 1' is already that of line 1;"):
        store.write_store(tmp_path, tmp_path / "c.jsonl", rows)
