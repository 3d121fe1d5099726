"""Stop strings: where in a turn's ids the first one is complete, however it is split over tokens."""

from bisect import bisect_left
from collections.abc import Callable, Sequence


def find_stop(
    decode: Callable[[Sequence[int]], str], ids: Sequence[int], stop_strings: Sequence[str], checked: int = 0
) -> int | None:
    """How many of `ids` to keep so that the last one kept completes the first stop string; None without a stop.

    The completing token is kept whole, whatever follows the stop inside it. A stop may start and end inside tokens and
    inside characters that are split over byte tokens, since windows of many tokens are decoded, never single ones.
    decode: exact text of any slice of ids, special tokens included, broken characters as U+FFFD.
    checked: how many ids an earlier call, on a shorter turn, has already found to be free of stops; work is then
    proportional to the new ids. Raises ValueError for an empty stop string.
    """
    if not all(stop_strings):
        raise ValueError("an empty stop string")
    if not stop_strings:
        return None
    # A token holds at least one byte, so a stop that ends at a new id starts at most this many ids before it.
    longest = max(len(stop.encode()) for stop in stop_strings)
    first = max(0, checked - longest + 1)
    window = ids[first:]

    def complete(count: int) -> bool:
        text = decode(window[:count])
        return any(stop in text for stop in stop_strings)

    if not complete(len(window)):
        return None
    return first + bisect_left(range(len(window)), True, key=complete)
