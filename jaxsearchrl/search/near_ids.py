"""What a corpus has in place of an id that it lacks, for a message to a person."""

import heapq

from jaxsearchrl.search.index import LocalIndex
from jaxsearchrl.search.reading import split_chunk_id

LOOKED_AT = 200_000
"""Ids that are compared; of a larger corpus so many, evenly spread."""
_SHOWN = 3


def near_ids(index: LocalIndex, document_id: str) -> str:
    """The chunks of the same source that there are, or else the ids most of whose beginning and end are the same."""
    chunk = split_chunk_id(document_id)
    for source in (chunk[0],) if chunk else (f"{document_id}#", f"{document_id}_"):
        first = next((number for number in (0, 1) if index.read(f"{source}{number}")), None)
        if first is not None:
            last = first
            while index.read(f"{source}{last + 1}"):
                last += 1
            return f"the chunks of that source are {source}{first} to {source}{last}"
    wanted = document_id.casefold()
    step = -(-index.size // LOOKED_AT)
    ids = (index.id(ordinal) for ordinal in range(0, index.size, step))
    nearest = heapq.nlargest(_SHOWN, ids, key=lambda found: (_shared(wanted, found.casefold()), -len(found)))
    return f"the nearest {'id is' if len(nearest) == 1 else 'ids are'} {', '.join(map(repr, nearest))}"


def _shared(one: str, other: str) -> int:
    """Characters that both begin with, and that both end with."""
    return _same(one, other) + _same(one[::-1], other[::-1])


def _same(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
