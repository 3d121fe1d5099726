"""From trajectories to batches of one fixed shape.

Several trajectories share a row of T tokens, kept apart by segment ids. Only the action positions reach the output
head: they are listed in A = B·T slots, real ones first, so that work on the rest is avoided by a count and not by
another shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import numpy as np

from jaxsearchrl.errors import UserError
from jaxsearchrl.trajectory import Trajectory

Array: TypeAlias = np.ndarray | jax.Array


@dataclass(frozen=True, eq=False)
class TrainRow:
    """One trajectory as the learner sees it; everything that belongs to a token travels in the same row.

    tokens [T] int32; action_mask [T] bool, True on sampled ids; sample_logprobs [T] float32 nats, read where the
    mask is True. Raises ValueError, naming `uid`, for unequal lengths, a non-finite number, a negative id, or a sampled
    first token (nothing predicts it).
    """

    uid: int
    tokens: np.ndarray
    action_mask: np.ndarray
    sample_logprobs: np.ndarray
    advantage: float

    def __post_init__(self) -> None:
        lengths = len(self.tokens), len(self.action_mask), len(self.sample_logprobs)
        if len(set(lengths)) != 1:
            raise ValueError(f"row {self.uid}: {lengths} tokens, mask values and log-probs; they must be as many")
        if not lengths[0]:
            raise ValueError(f"row {self.uid} is empty")
        if not np.isfinite(self.sample_logprobs).all():
            raise ValueError(f"row {self.uid}: a sampling log-prob is not finite")
        if not math.isfinite(self.advantage):
            raise ValueError(f"row {self.uid}: the advantage is {self.advantage}")
        if self.tokens.min() < 0:
            raise ValueError(f"row {self.uid}: a token id is negative")
        if self.action_mask[0]:
            raise ValueError(f"row {self.uid}: the first token is marked as sampled, but nothing precedes it")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def action_tokens(self) -> int:
        """How many tokens the loss reads."""
        return int(self.action_mask.sum())


def row_from(uid: int, trajectory: Trajectory, advantage: float) -> TrainRow:
    """The only way from a trajectory to a row. Raises as `TrainRow` does."""
    return TrainRow(
        uid=uid,
        tokens=np.array(trajectory.tokens, np.int32),
        action_mask=np.array(trajectory.action_mask, bool),
        sample_logprobs=np.array(trajectory.sample_logprobs, np.float32),
        advantage=float(advantage),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class PackedBatch:
    """B rows of T tokens with A = B·T action slots; a pytree, so that it is an argument of jitted functions.

    tokens, positions, segments: [B, T] int32; a position counts from its trajectory's start; segment 0 is padding.
    action_index: [A] int32, b·T + t of the hidden state that predicts the action, the position before it.
    targets [A] int32: the sampled ids. old_logprobs, advantages, weights: [A] float32; weight 1 for an action.
    n_actions: [] int32; slots from here on are padding and hold zeros.
    """

    tokens: Array
    positions: Array
    segments: Array
    action_index: Array
    targets: Array
    old_logprobs: Array
    advantages: Array
    weights: Array
    n_actions: Array


@dataclass(frozen=True, eq=False)
class Packing:
    """Every row handed in is in `batches` or in one of the two counts of rows left out."""

    batches: list[PackedBatch]
    packed: int
    zero_advantage: int
    without_actions: int


def pack(rows: Sequence[TrainRow], *, pack_rows: int, pack_tokens: int, skip_zero: bool = True) -> Packing:
    """First-fit decreasing into rows of T = pack_tokens, then B = pack_rows of them to a batch.

    The result depends on the set of rows, not on their order. Rows without an action token are left out, and with
    `skip_zero` those whose advantage is exactly 0 (no gradient comes of them; they still count in the loss's N).
    Raises UserError for a row longer than T, ValueError for a repeated uid.
    """
    if len({row.uid for row in rows}) != len(rows):
        raise ValueError("two rows have the same uid")
    for row in rows:
        if len(row) > pack_tokens:
            raise UserError(
                f"trajectory {row.uid} has {len(row)} tokens but learning.pack_tokens is {pack_tokens}; "
                "set learning.pack_tokens to at least sampling.capacity"
            )
    with_actions = [row for row in rows if row.action_tokens]
    kept = [row for row in with_actions if row.advantage != 0.0 or not skip_zero]
    bins = _first_fit_decreasing(kept, pack_tokens)
    return Packing(
        batches=[
            _batch(bins[start : start + pack_rows], pack_rows, pack_tokens) for start in range(0, len(bins), pack_rows)
        ],
        packed=len(kept),
        zero_advantage=len(with_actions) - len(kept),
        without_actions=len(rows) - len(with_actions),
    )


def _first_fit_decreasing(rows: Sequence[TrainRow], capacity: int) -> list[list[TrainRow]]:
    bins: list[list[TrainRow]] = []
    free: list[int] = []
    for row in sorted(rows, key=lambda row: (-len(row), row.uid)):
        place = next((i for i, room in enumerate(free) if room >= len(row)), None)
        if place is None:
            place = len(bins)
            bins.append([])
            free.append(capacity)
        bins[place].append(row)
        free[place] -= len(row)
    return bins


def _batch(bins: Sequence[Sequence[TrainRow]], B: int, T: int) -> PackedBatch:
    tokens, positions, segments = (np.zeros((B, T), np.int32) for _ in range(3))
    action_index, targets = (np.zeros(B * T, np.int32) for _ in range(2))
    old_logprobs, advantages, weights = (np.zeros(B * T, np.float32) for _ in range(3))
    filled = 0
    for b, members in enumerate(bins):
        start = 0
        for segment, row in enumerate(members, start=1):
            span = slice(start, start + len(row))
            tokens[b, span] = row.tokens
            positions[b, span] = np.arange(len(row))
            segments[b, span] = segment
            actions = np.flatnonzero(row.action_mask)
            slots = slice(filled, filled + len(actions))
            action_index[slots] = b * T + start + actions - 1
            targets[slots] = row.tokens[actions]
            old_logprobs[slots] = row.sample_logprobs[actions]
            advantages[slots] = row.advantage
            weights[slots] = 1.0
            start += len(row)
            filled += len(actions)
    return PackedBatch(
        tokens=tokens,
        positions=positions,
        segments=segments,
        action_index=action_index,
        targets=targets,
        old_logprobs=old_logprobs,
        advantages=advantages,
        weights=weights,
        n_actions=np.array(filled, np.int32),
    )
