"""Text that UTF-8 can hold, and text that fits."""

from collections.abc import Callable


def well_formed(text: str) -> str:
    """The text as valid Unicode: lone surrogates become U+FFFD, and two halves that stand side by side their character.

    JSON lets a file or a model write half of a surrogate pair, which nothing else takes. Any other text comes back as
    it is.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest size in [low, high] that fits, if all smaller ones do too; None if `low` does not."""
    if fits(high):
        return high
    if not fits(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
