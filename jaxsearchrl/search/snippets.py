"""Which part of a document a hit shows. Lengths are in characters."""

import re
from collections import Counter
from collections.abc import Callable, Set

_ASCII_WORD = re.compile(r"[a-z0-9]", re.IGNORECASE | re.ASCII)


def window(text: str, match: int, size: int) -> str:
    """At most `size` characters of the text, from about a third of them before position `match`, whole words if it can.

    Moved left at the end of the text, so that a window is full whenever the text is long enough.
    """
    start = max(0, min(match - size // 3, len(text) - size))
    stop = min(len(text), start + size)
    if start > 0 and (space := _space_after(text, start - 1, match)) is not None:
        start = space + 1
    if stop < len(text) and (space := _space_before(text, match, stop)) is not None:
        stop = space
    return text[start:stop].strip()


def densest(text: str, terms: Set[str], term_of: Callable[[str], str], size: int) -> str:
    """The window with the most query terms; the first of equals, and the text's start when there is none.

    term_of: a word's index term, which begins as the word does where that is an ASCII letter or digit, but for its case
    (so that most words need not be looked up). A term counts once in a window and weighs 1 / its occurrences in the
    text, so that common words do not draw the window away from rare ones.
    """
    words = _words_like(terms).finditer(text)
    found = [(m.start(), m.end(), t) for m in words if (t := term_of(m.group())) in terms]
    if not found:
        return window(text, 0, size)
    occurrences = Counter(term for _, _, term in found)
    inside: Counter[str] = Counter()
    first, weight, best, best_weight = 0, 0.0, 0, 0.0
    for start, end, term in found:
        inside[term] += 1
        if inside[term] == 1:
            weight += 1 / occurrences[term]
        # The window shows a third of its size before the first match, so the matches share the other two thirds.
        while end - found[first][0] > size - size // 3 and found[first][0] < start:
            dropped = found[first][2]
            inside[dropped] -= 1
            if inside[dropped] == 0:
                weight -= 1 / occurrences[dropped]
            first += 1
        if weight > best_weight + 1e-9:
            best, best_weight = found[first][0], weight
    return window(text, best, size)


def _words_like(terms: Set[str]) -> re.Pattern[str]:
    """Finds the words (runs of letters and digits) that begin as a term does, or not in ASCII."""
    first = "".join(sorted({term[0] + term[0].upper() for term in terms if _ASCII_WORD.match(term)}))
    return re.compile(rf"(?<![^\W_])(?=[{first}\u0080-\U0010ffff])[^\W_]+")


def _space_after(text: str, start: int, stop: int) -> int | None:
    return next((i for i in range(start, stop) if text[i].isspace()), None)


def _space_before(text: str, start: int, stop: int) -> int | None:
    return next((i for i in range(stop, start, -1) if text[i].isspace()), None)
