"""Stop strings: where in a turn's ids the first one is complete, however it is split over tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence


def find_stop(decode: Callable[[Sequence[int]], str], ids: Sequence[int], stop_strings: Sequence[str]) -> int | None:
    """How many of `ids` to keep so that the last one kept completes the first stop string; None without a stop.

    The completing token is kept whole, whatever follows the stop inside it. A stop may start and end inside tokens and
    inside characters that are split over byte tokens, since many tokens are decoded at once, never single ones.
    decode: exact text of any slice of ids, special tokens included, broken characters as U+FFFD.
    Raises ValueError for an empty stop string.
    """
    if not all(stop_strings):
        raise ValueError("an empty stop string")

    def complete(count: int) -> bool:
        text = decode(ids[:count])
        return any(stop in text for stop in stop_strings)

    if not complete(len(ids)):
        return None
    return bisect_left(range(len(ids)), True, key=complete)
