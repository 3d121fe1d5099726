from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.search.text_chunks import chunks, first_heading


def test_chunks_overlap_by_words_and_keep_the_text_between_them():
    text = " a  b\nc d e\tf g "
    assert list(chunks(text, 4, 1)) == ["a  b\nc d", "d e\tf g"]
    assert list(chunks(text, 3, 1)) == ["a  b\nc", "c d e", "e\tf g"]
    assert list(chunks(text, 3, 0)) == ["a  b\nc", "d e\tf", "g"]
    assert list(chunks(text, 7, 6)) == ["a  b\nc d e\tf g"]
    assert list(chunks(" \n", 3, 1)) == list(chunks("", 3, 1)) == [""]


def test_a_text_without_spaces_is_cut_too():
    assert [len(piece) for piece in chunks("漢" * 100, 2, 0)] == [64, 36]


@given(st.text(alphabet="ab \n漢", max_size=200), st.integers(1, 9), st.integers(0, 8))
def test_the_chunks_hold_every_word_and_the_last_is_not_in_the_one_before(text, words, overlap):
    overlap = min(overlap, words - 1)
    pieces = list(chunks(text, words, overlap))
    whole = [word[i : i + 32] for word in text.split() for i in range(0, len(word), 32)]
    read = [[word[i : i + 32] for word in piece.split() for i in range(0, len(word), 32)] for piece in pieces]
    assert all(piece in text for piece in pieces)
    assert read[0] + [word for piece in read[1:] for word in piece[overlap:]] == whole
    assert all(len(piece) <= words for piece in read)
    assert all(len(piece) > overlap for piece in read[1:])


def test_the_first_heading_of_a_markdown_file():
    assert first_heading("intro\n\n## Owls of the north ##\n# Other") == "Owls of the north"
    assert first_heading("```sh\n# a comment\n```\n# Real") == "Real"
    assert first_heading("#hashtag\n#\n####### seven\n    # code") == ""
    assert first_heading("") == ""
