"""Seeds of a run's parts, derived from one number: no random state has to be carried along or restored."""

import zlib

import numpy as np


def seed_of(seed: int, part: str, step: int = 0) -> int:
    """A number below 2**32 for one part of one step, e.g. ("train", 3)."""
    return int(np.random.SeedSequence([seed, zlib.crc32(part.encode()), step]).generate_state(1)[0])


def task_order(count: int, seed: int, start: int, stop: int) -> list[int]:
    """Places start … stop of the endless stream of task indices: epoch e is a permutation seeded with seed + e."""
    orders = {
        epoch: np.random.default_rng(seed + epoch).permutation(count)
        for epoch in range(start // count, (stop - 1) // count + 1)
    }
    return [int(orders[place // count][place % count]) for place in range(start, stop)]
