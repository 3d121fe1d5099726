import pytest

from jaxsearchrl.search.reading import read_window


@pytest.fixture
def index(make_index):
    rows = [(f"f_{n}", f"title {n}", f"text {n}") for n in (0, 1, 2, 4)]
    return make_index(
        [*rows, ("f#1", "", "other source"), ("f_02", "", "zeros"), ("7", "", "no source"), ("8", "", "x")]
    )


def test_a_document_is_read_whole(index):
    found = read_window(index, "f_1")
    assert (found.ids, found.title, found.text, found.truncated) == (("f_1",), "title 1", "text 1", False)
    assert read_window(index, "nope") is None


@pytest.mark.parametrize(
    ("document_id", "around", "ids"),
    [
        ("f_1", 1, ("f_0", "f_1", "f_2")),
        ("f_0", 1, ("f_0", "f_1")),
        ("f_2", 9, ("f_0", "f_1", "f_2")),  # f_3 is not there
        ("f_4", 9, ("f_4",)),
        ("f#1", 1, ("f#1",)),
        ("f_02", 1, ("f_02",)),
        ("7", 1, ("7",)),
        ("f_1", -3, ("f_1",)),
    ],
)
def test_neighbours_are_chunks_of_the_same_source_without_a_gap(index, document_id, around, ids):
    found = read_window(index, document_id, around=around)
    assert found.ids == ids
    assert found.text == "\n".join(index.read(i).text for i in ids)
    assert found.title == index.read(document_id).title


@pytest.mark.parametrize(
    ("start", "size", "text"),
    [
        (0, 4, "text"),
        (5, 9, "1"),
        (5, None, "1"),
        (-3, 2, "te"),
        (99, 5, ""),
        (0, 0, ""),
        (0, -1, ""),
        (0, 6, "text 1"),
    ],
)
def test_a_window_says_what_it_leaves_out(index, start, size, text):
    found = read_window(index, "f_1", start=start, size=size)
    assert (found.text, found.total) == (text, 6)
    assert found.truncated == (text != "text 1")
    assert found.extent == f"truncated: characters {found.start} to {found.start + len(text)} of 6"
