import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.chat.stops import find_stop


def toy(*pieces):
    """A vocabulary of text or byte pieces: its decoder, and the ids of all pieces in order."""
    table = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
    return lambda ids: b"".join(table[i] for i in ids).decode(errors="replace"), list(range(len(table)))


def test_a_stop_split_over_tokens_keeps_the_token_that_completes_it():
    decode, ids = toy("<search>", "x", "</", "sea", "rch", ">\n", "more")
    assert find_stop(decode, ids, ["</search>"]) == 6


def test_without_a_stop_nothing_is_cut():
    decode, ids = toy("</", "search")
    assert find_stop(decode, ids, ["</search>"]) is None
    assert find_stop(decode, ids, []) is None
    assert find_stop(decode, [], ["</search>"]) is None


def test_a_stop_inside_one_token():
    decode, ids = toy("a", "b</s>c", "</s>")
    assert find_stop(decode, ids, ["</s>"]) == 2


def test_the_first_of_several_stops_counts_not_the_first_listed():
    decode, ids = toy("a", "</answer>", "</search>")
    assert find_stop(decode, ids, ["</search>", "</answer>"]) == 2


def test_characters_split_over_byte_tokens():
    price, chart = "価".encode(), "📈".encode()
    decode, ids = toy("x", price[:1], price[1:], chart[:2], chart[2:3], chart[3:] + b" y", "z")
    assert find_stop(decode, ids, ["価"]) == 3
    assert find_stop(decode, ids, ["価📈"]) == 6


def test_an_empty_stop_string_is_refused():
    decode, ids = toy("a")
    with pytest.raises(ValueError, match="empty"):
        find_stop(decode, ids, [""])


@given(st.data())
def test_any_text_cut_anywhere_is_kept_up_to_its_first_stop(data):
    text = data.draw(st.text("ab価📈", max_size=12)).encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1)))) if len(text) > 1 else []
    decode, ids = toy(*(text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)))
    stops = data.draw(st.lists(st.text("ab価📈", min_size=1, max_size=3), min_size=1, max_size=2))
    expected = next((n for n in range(len(ids) + 1) if any(stop in decode(ids[:n]) for stop in stops)), None)
    assert find_stop(decode, ids, stops) == expected


@pytest.mark.parametrize(
    "text", ["<search>価格 📈</search>\nthen more", "<search>a.</search></search>", "x </search>x"]
)
def test_with_real_tokens(chat, text):
    ids = chat.encode(text)
    keep = find_stop(chat.decode, ids, ["</search>"])
    assert "</search>" in chat.decode(ids[:keep])
    assert "</search>" not in chat.decode(ids[: keep - 1])
