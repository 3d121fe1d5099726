"""A filter before grep: which three letters stand next to each other somewhere in each small piece of the corpus.

    grams.bin   for each group of GROUP grains (fewer in a small corpus), BITS rows with a bit for each grain of the
                group: row h has the grains with a gram of hash h

A grain is a run of documents of about GRAIN_BYTES. Its grams are those of its bytes, ASCII letters in lower case, and
the two characters that RE2 takes for an ASCII letter in another case as that letter. Grams of one hash cannot be told
apart, so a grain may be looked at for nothing, but none that has a match is passed over.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from tqdm import tqdm

from jaxsearchrl.search.literals import Required
from jaxsearchrl.search.store import DocumentStore

GRAIN_BYTES = 4096
BITS = 8192
GROUP = 2048
_FOLDED = ((b"\xc5\xbf", b"s"), (b"\xe2\x84\xaa", b"k"))  # U+017F, U+212A
_LOWER = np.array([*range(65), *range(97, 123), *range(91, 256)], np.uint32)


def write_grams(folder: Path, store: DocumentStore, threads: int) -> None:
    """Writes grams.bin onto the disk. Memory: 10 MB a thread."""
    cuts = store.blocks(GRAIN_BYTES)
    size = _group_size(cuts)
    groups = [cuts[first : first + size + 1] for first in range(0, len(cuts) - 1, size)]
    with (
        tqdm(total=store.size, unit="B", unit_scale=True, desc="indexing for grep", delay=1) as bar,
        (folder / "grams.bin").open("wb") as file,
        ThreadPoolExecutor(threads) as pool,
    ):
        for first in range(0, len(groups), threads):  # so that no more than `threads` groups wait to be written
            batch = groups[first : first + threads]
            for rows in pool.map(lambda group: _group(store, group, size), batch):
                rows.tofile(file)
            bar.update(store.span(batch[0][0], batch[-1][-1]))
        file.flush()
        os.fsync(file.fileno())


class Grams:
    """The filter of a corpus, mapped from its file. Raises OSError or ValueError for one that is not whole."""

    def __init__(self, folder: Path, store: DocumentStore):
        self.cuts = store.blocks(GRAIN_BYTES)
        size = _group_size(self.cuts)
        groups = -(-(len(self.cuts) - 1) // size)
        self._rows = np.asarray(np.memmap(folder / "grams.bin", np.uint8, "r")).reshape(groups, BITS, size // 8)

    def grains(self, wanted: Required) -> np.ndarray | None:
        """The rising numbers of the grains that may hold what is wanted; None when nothing can be said.

        Grain n has the documents from cuts[n] to cuts[n + 1].
        """
        bits = self._having(wanted)
        if bits is None:
            return None
        return np.flatnonzero(np.unpackbits(bits.reshape(-1), bitorder="little")[: len(self.cuts) - 1])

    def _having(self, wanted: Required) -> np.ndarray | None:
        """Bits [groups, bytes of a row], or None for all."""
        letters = [literal.encode() for literal in wanted.literals]
        hashes = np.unique(np.concatenate([np.zeros(0, np.uint32), *(_hashes(each) for each in letters)]))
        known = [np.bitwise_and.reduce(self._rows[:, hashes], axis=1)] if len(hashes) else []
        for choice in wanted.choices:
            found = [bits for branch in choice if (bits := self._having(branch)) is not None]
            if len(found) == len(choice):
                known.append(np.bitwise_or.reduce(found))
        return np.bitwise_and.reduce(known) if known else None


def _group_size(cuts: Sequence[int]) -> int:
    return min(GROUP, -(-(len(cuts) - 1) // 8) * 8)


def _group(store: DocumentStore, cuts: Sequence[int], size: int) -> np.ndarray:
    """Bits [BITS, size / 8] of up to `size` grains."""
    packed = np.zeros((size // 8, BITS), np.uint8)
    for row, first in enumerate(range(0, len(cuts) - 1, 8)):
        grains = [_folded(store.block(start, stop)[0]) for start, stop in pairwise(cuts[first : first + 9])]
        has = np.zeros(8 * BITS, bool)
        # A gram that two grains share is counted to the first: a bit too many there does no harm.
        owner = np.repeat(np.arange(len(grains), dtype=np.uint32), [len(grain) for grain in grains])
        has[_hashes(b"".join(grains)) << 3 | owner[:-2]] = True
        packed[row] = np.packbits(has, bitorder="little")
    return np.ascontiguousarray(packed.T)


def _folded(text: bytes) -> bytes:
    for character, letter in _FOLDED:
        text = text.replace(character, letter)
    return text


def _hashes(text: bytes) -> np.ndarray:
    """A number below BITS for every three bytes that stand together (uint32)."""
    letters = _LOWER[np.frombuffer(text, np.uint8)]
    mixed = (letters[:-2] | letters[1:-1] << 8 | letters[2:] << 16) * np.uint32(0x9E3779B1)
    return mixed >> np.uint32(32 - 13)
