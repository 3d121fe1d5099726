"""Text that nobody vouches for, made readable and harmless.

Characters that show nothing or change how their neighbours are shown (controls, direction marks, zero-width and blank
ones, halves of surrogate pairs) are spelled out; everything else stands as it is, escaped.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable

from markupsafe import Markup, escape

LONGEST = 20_000
"""Characters of one text on a page; the plain-text page has all of them."""

_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
# Letters and marks that are blank all the same: fillers, a joiner, the selectors in which text can be hidden.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0e\U000e0100-\U000e01ef]")


def visible(text: str) -> Markup:
    """The text for a page."""
    return _spelled(
        text, lambda code, name: Markup('<span class="hidden-char" title="{}">{}</span>').format(name, code)
    )


def plain(text: str) -> str:
    """The text for a terminal, which takes no control from it."""
    return "".join(f"<{_code(c)}>" if _hides(c) else c for c in text) if _suspect(text) else text


def lit(text: str, pattern: "re.Pattern[str] | None") -> Markup:
    """The text for a page, with a mark around what the pattern finds."""
    if pattern is None:
        return visible(text)
    pieces, place = [], 0
    for match in pattern.finditer(text):
        pieces += [visible(text[place : match.start()]), Markup("<mark>{}</mark>").format(visible(match[0]))]
        place = match.end()
    return Markup("").join([*pieces, visible(text[place:])])


def finder(words: Iterable[str]) -> "re.Pattern[str] | None":
    """Finds any of the words where it stands by itself, in upper or lower case; None without words."""
    longest_first = sorted({word for word in words if word.strip()}, key=lambda word: (-len(word), word))
    if not longest_first:
        return None
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])", re.IGNORECASE)


def _spelled(text: str, mark: Callable[[str, str], Markup]) -> Markup:
    if not _suspect(text):
        return escape(text)
    pieces: list[Markup] = []
    run: list[str] = []
    for character in text:
        if _hides(character):
            pieces += [escape("".join(run)), mark(_code(character), unicodedata.name(character, "control"))]
            run = []
        else:
            run.append(character)
    return Markup("").join([*pieces, escape("".join(run))])


def _suspect(text: str) -> bool:
    return not text.isprintable() or _BLANK.search(text) is not None


def _hides(character: str) -> bool:
    if character in "\n\t" or character.isprintable():
        return bool(_BLANK.match(character))
    return unicodedata.category(character) in _HIDDEN


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
