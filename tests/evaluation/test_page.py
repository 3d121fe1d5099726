"""Pages that escape what models write, load nothing, and place their dots where the numbers are."""

import re
from html.parser import HTMLParser

import pytest

from jaxsearchrl.evaluation.page import (
    HEIGHT,
    MARGIN,
    WIDTH,
    Chart,
    Line,
    Listing,
    Section,
    Table,
    as_html,
    as_markdown,
)

EVIL = "<script>alert(1)</script> & \"quotes\" 'too' | ``` </pre> {{ 7 * 7 }}"
SECTIONS = [
    Section("One", ["words " + EVIL, Table(["a", "b"], [["1", EVIL]]), Listing("said", EVIL)]),
    Section("Two", [Chart("F <b>", [Line("run <i>", [(0, 0.25, 0.0, 0.5), (4, 0.75, None, None)])])]),
    Section("Nothing to say", []),
]


class Tags(HTMLParser):
    """Which tags and attributes a page has; that all are closed in order."""

    def __init__(self):
        super().__init__()
        self.seen, self.open, self.attributes = set(), [], {}

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes.setdefault(tag, []).append(dict(attrs))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes.setdefault(tag, []).append(dict(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_escapes_all_texts_and_asks_for_nothing():
    page = as_html(EVIL, SECTIONS)
    tags = Tags()
    tags.feed(page)
    assert not tags.open
    assert not {"script", "link", "img", "iframe", "object", "b", "i"} & tags.seen
    assert not re.search(r"https?:|src=|url\(|@import|\bon\w+=", page)
    assert "{{ 7 * 7 }}" in page  # shown, not computed
    assert "default-src 'none'" in page
    assert "Nothing to say" not in page


def test_a_chart_places_its_dots_and_bars_by_hand():
    tags = Tags()
    tags.feed(as_html("t", SECTIONS))
    dots = [(float(a["cx"]), float(a["cy"])) for a in tags.attributes["circle"]]
    # Values from 0 (the interval's end) to 0.75: 0.25 lies a third of the way up.
    bottom, top = HEIGHT - 24, 12
    assert dots == [(MARGIN, pytest.approx(bottom + (top - bottom) / 3, abs=0.1)), (WIDTH - 10, top)]
    bar = next(a for a in tags.attributes["line"] if a["stroke"] != "#e4e4e4")
    assert (float(bar["y1"]), float(bar["y2"])) == (bottom, pytest.approx(bottom + (top - bottom) * 2 / 3, abs=0.1))


def test_a_single_point_stands_in_the_middle():
    tags = Tags()
    tags.feed(as_html("t", [Section("s", [Chart("c", [Line("l", [(3, 0.5, None, None)])])])]))
    (dot,) = tags.attributes["circle"]
    assert (float(dot["cx"]), float(dot["cy"])) == ((MARGIN + WIDTH - 10) / 2, (HEIGHT - 24 + 12) / 2)


def test_markdown_keeps_tables_whole_and_fences_closed():
    text = as_markdown(EVIL, SECTIONS)
    assert "<script>" not in text.split("````text")[0]
    row = next(line for line in text.splitlines() if line.startswith("| 1 |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert text.count("````") == 2  # a fence longer than any in the text
    assert "| 0 | 0.250 [0.000, 0.500] |" in text
    assert "| 4 | 0.75 |" in text
