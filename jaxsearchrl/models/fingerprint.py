"""A cheap, stable name for a checkpoint: the same weights give the same digest however they are cut into files."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable

import numpy as np

from jaxsearchrl.models.architecture import Architecture

SAMPLED_ROWS = 4


def sample_rows(rows: int) -> list[int]:
    """Up to `SAMPLED_ROWS` row numbers of a tensor, evenly spread, the first and the last among them."""
    return sorted({int(i) for i in np.linspace(0, rows - 1, SAMPLED_ROWS)})


def fingerprint(arch: Architecture, tensors: Iterable[tuple[str, tuple[int, ...], str, bytes]]) -> str:
    """sha256, in hexadecimal. tensors: (name, shape, storage type, bytes of the sampled rows) of each."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(arch), sort_keys=True).encode())
    for name, shape, kind, sampled in sorted(tensors):
        digest.update(f"\n{name} {shape} {kind} ".encode())
        digest.update(hashlib.sha256(sampled).digest())
    return digest.hexdigest()
