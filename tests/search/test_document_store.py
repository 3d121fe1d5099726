import pytest

from jaxsearchrl.search import store
from jaxsearchrl.search.contract import Document


def test_ids_of_one_hash_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_hash", lambda document_id: 7)
    assert store.write_store(tmp_path, [Document(i, "", f"text of {i}") for i in ["b", "a", "c"]]) == 3
    read = store.DocumentStore(tmp_path)
    assert [read.ordinal(i) for i in ["b", "a", "c", "d"]] == [0, 1, 2, None]


@pytest.mark.parametrize("one_hash", [False, True])
def test_a_repeated_id_is_found_among_many_others(tmp_path, monkeypatch, one_hash):
    if one_hash:  # then equal ids do not lie side by side
        monkeypatch.setattr(store, "_hash", lambda document_id: 7)
    with pytest.raises(store.DuplicateId) as error:
        store.write_store(tmp_path, [Document(f"id {n % 399}", "", "") for n in range(400)])
    assert (error.value.id, error.value.first, error.value.again) == ("id 0", 0, 399)


def test_the_store_knows_its_size_and_that_of_parts(tmp_path):
    store.write_store(tmp_path, [Document("a", "é", "xy"), Document("b", "", "z")])
    read = store.DocumentStore(tmp_path)
    assert (read.size, read.span(0, 1), read.span(1, 2), read.span(1, 1)) == (9, 6, 3, 0)
