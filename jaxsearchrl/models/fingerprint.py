"""A cheap, stable name for a checkpoint: the same weights give the same digest however they are cut into files."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable

import numpy as np

from jaxsearchrl.models.architecture import Architecture

SAMPLED_ROWS = 4


def sample_rows(shape: tuple[int, ...]) -> list[int] | slice:
    """Which rows stand for a tensor: all of a vector, else up to `SAMPLED_ROWS` spread from the first to the last."""
    if len(shape) == 1:
        return slice(None)
    return sorted({int(i) for i in np.linspace(0, shape[0] - 1, SAMPLED_ROWS)})


def fingerprint(arch: Architecture, tensors: Iterable[tuple[str, tuple[int, ...], str, bytes]]) -> str:
    """sha256, in hexadecimal. tensors: (name, shape, storage type, bytes of the sampled rows) of each."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(arch), sort_keys=True).encode())
    for name, shape, kind, sampled in sorted(tensors):
        digest.update(f"\n{name} {shape} {kind} ".encode())
        digest.update(hashlib.sha256(sampled).digest())
    return digest.hexdigest()
