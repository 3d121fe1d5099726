"""Cuts a text or Markdown file into overlapping chunks, which are what a search finds."""

import re
from collections.abc import Iterator

# What has no spaces (Chinese, base64) is cut every 32 characters, so that no chunk is without end.
_WORD = re.compile(r"\S{1,32}")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r" {0,3}(?:```|~~~)")


def chunks(text: str, words: int, overlap: int) -> Iterator[str]:
    """Pieces of the text of at most `words` words, each beginning with the last `overlap` words of the one before.

    Each is a piece as it stands, line breaks and all; all words are in some piece, and the last piece has a word that
    the one before has not. A text without words is one empty piece.
    """
    places = [match.span() for match in _WORD.finditer(text)]
    for first in range(0, max(1, len(places) - overlap), words - overlap):
        piece = places[first : first + words]
        yield text[piece[0][0] : piece[-1][1]] if piece else ""


def first_heading(markdown: str) -> str:
    """The text of the first heading ("# Heading"), empty if there is none. Code blocks have none."""
    fenced = False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and (heading := _HEADING.match(line)) and heading[1]:
            return heading[1]
    return ""
