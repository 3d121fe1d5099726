"""Which part of a document a hit shows. Lengths are in characters."""

import re
from collections import Counter
from collections.abc import Callable, Set

_WORD = re.compile(r"[^\W_]+")
_FOREIGN_WORD = re.compile(r"(?<![^\W_])[a-zA-Z0-9]*[^\W_\x00-\x7f][^\W_]*")  # that has a letter beyond ASCII
_SPACE = re.compile(r"\s")


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

    term_of: a word's index term, which begins as the word does but for its case, its last letter ("flies", "fli") and
    letters beyond ASCII, so that most words need not be looked up. A term counts once in a window and weighs 1 / its
    occurrences in the text, so that common words do not draw the window away from rare ones.
    """
    found = []
    for start in _word_starts(text, terms):
        word = _WORD.match(text, start)
        if word and (term := term_of(word.group())) in terms:
            found.append((start, word.end(), term))
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


def _word_starts(text: str, terms: Set[str]) -> list[int]:
    """Where the words (runs of letters and digits) begin whose term may be one of these, rising."""
    lower = text.replace("İ", "I").lower()  # the one letter that would become two
    starts = set()
    for beginning in {_beginning(term) for term in terms}:
        start = lower.find(beginning)
        while start >= 0:
            if start == 0 or not lower[start - 1].isalnum():
                starts.add(start)
            start = lower.find(beginning, start + 1)
    if not text.isascii():
        starts.update(word.start() for word in _FOREIGN_WORD.finditer(text))
    return sorted(starts)


def _beginning(term: str) -> str:
    """The letters that every word of this term begins with: stemming makes "dying" "die", "early" "earli"."""
    return term[:-2] if term.endswith("ie") else term[:-1] or term


def _space_after(text: str, start: int, stop: int) -> int | None:
    space = _SPACE.search(text, start, stop)
    return space.start() if space else None


def _space_before(text: str, start: int, stop: int) -> int | None:
    return next((i for i in range(stop, start, -1) if text[i].isspace()), None)
