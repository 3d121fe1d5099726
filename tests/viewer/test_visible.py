"""Hostile text is readable and does nothing."""

import html
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.viewer.visible import LONGEST, finder, lit, plain, visible

TRICKS = {
    "\u202eevil": "U+202E",
    "a\u200bb": "U+200B",
    "\x1b[2J": "U+001B",
    "nul\0": "U+0000",
    "\ud800": "U+D800",
    "\u3164": "U+3164",
    "\U000e0041": "U+E0041",
    "\U000e0fff": "U+E0FFF",
    "\u180b": "U+180B",
    "\u2065": "U+2065",
    "\ufff0": "U+FFF0",
    "\ufeff": "U+FEFF",
    "a\rb": "U+000D",
    "x\ufe01": "U+FE01",
}


@pytest.mark.parametrize(("text", "code"), TRICKS.items(), ids=TRICKS.values())
def test_what_cannot_be_seen_is_spelled_out(text, code):
    assert code in visible(text)
    assert code in plain(text)


@given(st.text(st.characters()))
def test_nothing_hidden_and_no_markup_comes_through(text):
    page = str(visible(text))
    assert not re.search(r"<(?!/?span)", page)
    for shown in (page, plain(text)):
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") and c not in "\n\t"]
    page.encode()  # no half of a surrogate pair


@given(st.text(st.characters(categories=("L", "N", "P", "S"), max_codepoint=0x24F)))
def test_plain_words_stay_as_they_are(text):
    assert html.unescape(str(visible(text))) == text
    assert plain(text) == text


def test_letters_of_all_scripts_and_combined_marks_stay():
    for text in ("שלום", "مرحبا", "中文", "é", "naïve", "👍", "ก็"):
        assert visible(text) == text


def test_gold_is_marked_where_it_stands_by_itself():
    found = finder(["4ie", "a<b", "4ie-2"])
    assert lit("4ie | x4ie | 4IE, (4ie-2)", found) == (
        "<mark>4ie</mark> | x4ie | <mark>4IE</mark>, (<mark>4ie-2</mark>)"
    )
    assert lit('"a<b"', found) == "&#34;<mark>a&lt;b</mark>&#34;"
    assert lit("<i>", finder([])) == "&lt;i&gt;"
    assert finder(["", " "]) is None


def test_of_a_long_text_the_beginning_is_shown_and_how_much_is_not():
    more = '<span class="note"> … 3 more characters</span>'
    assert visible("a" * LONGEST + "<b>") == "a" * LONGEST + more
    assert (
        lit("a" * (LONGEST - 4) + " <b>xyz", finder(["<b"])) == "a" * (LONGEST - 4) + " <mark>&lt;b</mark>&gt;" + more
    )
    assert visible("a" * LONGEST) == "a" * LONGEST
