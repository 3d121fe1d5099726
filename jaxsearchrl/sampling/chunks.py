"""Which chunks of tokens one extend call writes."""

from collections.abc import Sequence

Chunk = tuple[int, int, list[int]]
"""Tokens to write: the slot, the position of the first, their ids."""


def calls_of(chunks: Sequence[Chunk], size: int, *, apart: bool) -> list[list[Chunk]]:
    """Shares chunks out among calls of at most `size`, each into the first that its slot's order allows.

    Chunks of one slot come in order and may share a call, unless they are to stay apart: then each waits for the one
    before, as it must where a layer is bound to one length.
    """
    calls: list[list[Chunk]] = []
    last: dict[int, int] = {}  # the call of a slot's last chunk
    full = 0  # how many first calls are full
    for chunk in chunks:
        number = max(full, last.get(chunk[0], -1) + apart)
        while number < len(calls) and len(calls[number]) == size:
            number += 1
        if number == len(calls):
            calls.append([])
        calls[number].append(chunk)
        last[chunk[0]] = number
        while full < len(calls) and len(calls[full]) == size:
            full += 1
    return calls
