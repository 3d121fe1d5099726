"""Text that nobody vouches for, made readable and harmless.

Characters that show nothing or change how their neighbours are shown (controls, direction marks, zero-width and blank
ones, halves of surrogate pairs) are spelled out; everything else stands as it is, escaped.
"""

import re
import unicodedata
from collections.abc import Iterable

from markupsafe import Markup, escape

LONGEST = 20_000
"""Characters of one text that a page shows; the plain-text page has all of them."""

_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
_SUSPECT = re.compile("[^\n\t -~\u00a0-\u00ac\u00ae-\u02ff]")  # what is neither a plain line's nor Latin
_MORE = Markup('<span class="note"> … {} more characters</span>')
_MARK = Markup('<span class="hidden-char" title="{}">{}</span>')
# Letters, marks and what has no name yet, blank all the same: fillers, a joiner, selectors and tags that can hide text.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u2800\u3164\ufe00-\ufe0e\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)


def visible(text: str) -> Markup:
    """The text for a page, its beginning if it is very long."""
    return lit(text, None)


def plain(text: str) -> str:
    """The text for a terminal, which takes no control from it."""
    return _SUSPECT.sub(lambda match: f"<{_code(match[0])}>" if _hides(match[0]) else match[0], text)


def lit(text: str, pattern: "re.Pattern[str] | None") -> Markup:
    """The text for a page, with a mark around what the pattern finds."""
    shown, pieces, place = text[:LONGEST], [], 0
    for match in pattern.finditer(shown) if pattern else ():
        pieces += [_spelled(shown[place : match.start()]), Markup("<mark>{}</mark>").format(_spelled(match[0]))]
        place = match.end()
    pieces.append(_spelled(shown[place:]))
    if len(text) > LONGEST:
        pieces.append(_MORE.format(len(text) - LONGEST))
    return Markup("").join(pieces)


def finder(words: Iterable[str]) -> "re.Pattern[str] | None":
    """Finds any of the words where it stands by itself, in upper or lower case; None without words."""
    longest_first = sorted({word for word in words if word.strip()}, key=lambda word: (-len(word), word))
    if not longest_first:
        return None
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])", re.IGNORECASE)


def _spelled(text: str) -> Markup:
    pieces, place = [], 0
    for match in _SUSPECT.finditer(text):
        if _hides(match[0]):
            mark = _MARK.format(unicodedata.name(match[0], "control"), _code(match[0]))
            pieces += [escape(text[place : match.start()]), mark]
            place = match.end()
    return Markup("").join([*pieces, escape(text[place:])])


def _hides(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN or _BLANK.match(character) is not None


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
