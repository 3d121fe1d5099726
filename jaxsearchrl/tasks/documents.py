"""Documents as an observation: as many whole ones as there is room for, best first."""

from collections.abc import Callable, Sequence

from jaxsearchrl.text import largest

_CUT = " (truncated)"


def fit_documents(texts: Sequence[str], room: int, count_tokens: Callable[[str], int], between: str) -> tuple[str, int]:
    """The documents' texts in at most `room` tokens, joined by `between`, and how many are in it.

    Whole ones from the first on; a note says how many of them, when not all. When not even the first fits, a part of
    it; nothing at all ("", 0) where there is no room for that either, and without documents.
    """

    def shown(n: int, chars: int) -> str:
        parts = [*texts[:n]] if chars == whole else [texts[0][:chars] + _CUT]
        note = [] if n == len(texts) else [f"({n} of {len(texts)} documents shown)"]
        return between.join([*parts, *note])

    def fits(n: int, chars: int) -> bool:
        return count_tokens(shown(n, chars)) <= room

    if not texts:
        return "", 0
    whole = len(texts[0])
    n = largest(1, len(texts), lambda n: fits(n, whole))
    if n is not None:
        return shown(n, whole), n
    chars = largest(1, whole - 1, lambda chars: fits(1, chars))
    return ("", 0) if chars is None else (shown(1, chars), 1)
