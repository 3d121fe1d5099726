"""A cheap, stable name for a checkpoint: the same weights give the same digest however they are cut into files.

What is read of a tensor to tell it from another: a few rows for a name, every row to leave one of two out.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable

import numpy as np

from jaxsearchrl.models.architecture import Architecture

SAMPLED_ROWS = 4
COMPARED_ROWS = 1024  # at a time


def sample_rows(shape: tuple[int, ...], count: int = SAMPLED_ROWS) -> list[int] | slice:
    """Which rows stand for a tensor: all of a vector, else up to `count` spread from the first to the last."""
    if len(shape) == 1:
        return slice(None)
    return sorted({int(i) for i in np.linspace(0, shape[0] - 1, count)})


def sample_pieces(shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """As `sample_rows`, as indices: all of a vector, else rows of the last axis, spread over all others at once."""
    if len(shape) == 1:
        return [()]
    spread = (np.linspace(0, size - 1, SAMPLED_ROWS).astype(int).tolist() for size in shape[:-1])
    return [tuple(slice(i, i + 1) for i in place) for place in sorted(set(zip(*spread, strict=True)))]


def same_rows(one: Callable[[slice], np.ndarray], other: Callable[[slice], np.ndarray], rows: int) -> bool:
    """Whether two tensors are equal byte for byte; each is a function from a slice to those rows, few at a time."""
    blocks = (slice(start, min(start + COMPARED_ROWS, rows)) for start in range(0, rows, COMPARED_ROWS))
    return all(one(block).tobytes() == other(block).tobytes() for block in blocks)


def fingerprint(arch: Architecture, tensors: Iterable[tuple[str, tuple[int, ...], str, bytes]]) -> str:
    """sha256, in hexadecimal. tensors: (name, shape, storage type, bytes of the sampled rows) of each."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(arch), sort_keys=True).encode())
    for name, shape, kind, sampled in sorted(tensors):
        digest.update(f"\n{name} {shape} {kind} ".encode())
        digest.update(hashlib.sha256(sampled).digest())
    return digest.hexdigest()
