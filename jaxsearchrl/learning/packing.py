"""From trajectories to batches of one fixed shape.

Several trajectories share a row of T tokens, kept apart by segment ids. What all of a row's trajectories begin with
(the tools, the question, even equal first actions) is there once, as segment 1, which every other segment of the row
sees: a position's hidden state depends only on what precedes it, so nothing changes but the work. Only the action
positions reach the output head: they are listed in A = B·T slots, real ones first, so that work on the rest is avoided
by a count and not by another shape.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import jax
import numpy as np

from jaxsearchrl.errors import UserError
from jaxsearchrl.trajectory import Trajectory

Array: TypeAlias = Any  # numpy on the host, traced inside a jitted function


@dataclass(frozen=True, eq=False)
class TrainRow:
    """One trajectory as the learner sees it; everything that belongs to a token travels in the same row.

    tokens [T] int32; action_mask [T] bool, True where the loss reads; sampled [T] bool, True on sampled ids, which are
    all that the loss reads but for the ablation; sample_logprobs [T] float32 nats, read where both are True; routes [T]
    uint32, the sampler's, 0 where not known (see models/routes.py). Raises ValueError, naming `uid`, for unequal
    lengths, a non-finite number, a negative id, or a first token that the loss reads (nothing predicts it).
    """

    uid: int
    tokens: np.ndarray
    action_mask: np.ndarray
    sampled: np.ndarray
    sample_logprobs: np.ndarray
    routes: np.ndarray
    advantage: float

    def __post_init__(self) -> None:
        fields = (self.tokens, self.action_mask, self.sampled, self.sample_logprobs, self.routes)
        lengths = [len(field) for field in fields]
        if len(set(lengths)) != 1:
            raise ValueError(
                f"row {self.uid}: {lengths} tokens, mask values (two), log-probs and routes; they must be as many"
            )
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


def row_from(uid: int, trajectory: Trajectory, advantage: float, *, observations: bool = False) -> TrainRow:
    """The only way from a trajectory to a row. observations: the loss reads them as well. Raises as `TrainRow` does."""
    sampled = np.array(trajectory.action_mask, bool)
    read = sampled.copy()
    if observations:
        read[trajectory.spans[0].stop :] = True  # all but the prompt
    return TrainRow(
        uid=uid,
        tokens=np.array(trajectory.tokens, np.int32),
        action_mask=read,
        sampled=sampled,
        sample_logprobs=np.array(trajectory.sample_logprobs, np.float32),
        routes=np.array(trajectory.routes, np.uint32),
        advantage=float(advantage),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class PackedBatch:
    """B rows of T tokens with A = B·T action slots; a pytree, so that it is an argument of jitted functions.

    tokens, positions, segments: [B, T] int32; a position counts from its trajectory's start; segment 0 is padding,
    segment 1 the shared beginning of the row's trajectories, segments 2 … what is each one's own.
    action_index: [A] int32, b·T + t of the hidden state that predicts the action, the position before it. Actions in a
    shared beginning stand here once per trajectory.
    targets [A] int32: the ids that the actions are. old_logprobs, advantages, weights: [A] float32; weight 1 for an
    action. sampled [A] float32: 0 for an action that the policy did not sample. reference_logprobs [A] float32: under
    another adapter; zeros until the learner fills them in. routes [A] uint32: the sampler's, 0 where not known.
    n_actions: [] int32; slots from here on are padding and hold zeros. Of a batch in P parts: see `parted`.
    """

    tokens: Array
    positions: Array
    segments: Array
    action_index: Array
    targets: Array
    old_logprobs: Array
    advantages: Array
    weights: Array
    sampled: Array
    reference_logprobs: Array
    routes: Array
    n_actions: Array


@dataclass(frozen=True, eq=False)
class Packing:
    """Every row handed in is in `batches` or in one of the two counts of rows left out."""

    batches: list[PackedBatch]
    packed: int
    zero_advantage: int
    without_actions: int


def pack(rows: Sequence[TrainRow], *, pack_rows: int, pack_tokens: int, skip_zero: bool = True) -> Packing:
    """Fills rows of T = pack_tokens so that trajectories with a common beginning meet, then B = pack_rows to a batch.

    The result depends on the set of rows, not on their order. Rows without an action token are left out, and with
    `skip_zero` those whose advantage is exactly 0 (no gradient comes of them; they still count in the loss's N).
    Raises UserError for a row with actions that is longer than T, ValueError for a repeated uid.
    """
    if len({row.uid for row in rows}) != len(rows):
        raise ValueError("two rows have the same uid")
    with_actions = [row for row in rows if row.action_tokens]
    for row in with_actions:
        if len(row) > pack_tokens:
            raise UserError(
                f"trajectory {row.uid} has {len(row)} tokens but learning.pack_tokens is {pack_tokens}; "
                "set learning.pack_tokens to at least sampling.capacity"
            )
    kept = [row for row in with_actions if row.advantage != 0.0 or not skip_zero]
    bins = _fill(kept, pack_tokens)
    return Packing(
        batches=[
            _batch(bins[start : start + pack_rows], pack_rows, pack_tokens) for start in range(0, len(bins), pack_rows)
        ],
        packed=len(kept),
        zero_advantage=len(with_actions) - len(kept),
        without_actions=len(rows) - len(with_actions),
    )


def parted(batch: PackedBatch, parts: int) -> PackedBatch:
    """The batch with its action slots in P parts, one for each B/P rows, so that the devices that have them have both.

    In each part [A/P] of a list stand the actions of its rows, real ones first; action_index counts within the part's
    rows, and n_actions is [P]. `parts` must divide B; a packed row has at most T actions, so that all fit.
    """
    B, T = batch.tokens.shape
    size = B * T // parts
    of_part = batch.action_index[: batch.n_actions] // size
    counts = np.bincount(of_part, minlength=parts)
    starts = np.cumsum(counts) - counts
    # Actions are listed by row, so those of a part are together.
    to = of_part * size + np.arange(len(of_part)) - starts[of_part]

    def moved(values: np.ndarray) -> np.ndarray:
        slots = np.zeros_like(values)
        slots[to] = values[: batch.n_actions]
        return slots

    lists = (field.name for field in fields(batch) if getattr(batch, field.name).shape == (B * T,))
    lists = {name: moved(getattr(batch, name)) for name in lists}
    lists["action_index"] %= size
    return replace(batch, **lists, n_actions=counts.astype(np.int32))


@dataclass(eq=False)
class _Bin:
    """A packed row in the making, filled with rows in the order of their tokens.

    length: of the packed row. shared: how many first tokens all members have in common. reach: the same for all members
    and the row at hand; never more than shared.
    """

    members: list[TrainRow]
    length: int
    action_tokens: int
    shared: int
    reach: int

    def growth(self, row: TrainRow) -> int:
        """How much longer the packed row gets by another member; each member must then repeat what is shared less."""
        return len(self.members) * (self.shared - self.reach) - self.shared + len(row)

    def add(self, row: TrainRow, action_tokens: int) -> None:
        self.length += self.growth(row)
        self.members.append(row)
        self.action_tokens += action_tokens
        self.shared = self.reach


def _fill(rows: Sequence[TrainRow], capacity: int) -> list[_Bin]:
    """Takes rows in the order of their tokens, so that common beginnings meet; each goes where it costs least room.

    Members may share the place of an action, so a packed row's actions are bounded by T as well: A = B·T suffices.
    """
    bins: list[_Bin] = []
    before: TrainRow | None = None
    for row in sorted(rows, key=lambda row: (row.tokens.tolist(), row.uid)):
        # In sorted order, what a row has in common with an earlier one is the least that neighbours in between have.
        common = 0 if before is None else _common(before, row)
        for bin in bins:
            bin.reach = min(bin.reach, common)
        before, actions = row, row.action_tokens
        fitting = [
            bin for bin in bins if bin.length + bin.growth(row) <= capacity and bin.action_tokens + actions <= capacity
        ]
        if fitting:
            min(fitting, key=lambda bin: bin.growth(row)).add(row, actions)
        else:
            bins.append(_Bin([row], len(row), actions, shared=len(row), reach=len(row)))
    return bins


def _common(a: TrainRow, b: TrainRow) -> int:
    """How many first tokens two rows have in common."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a.tokens[:n] != b.tokens[:n])
    return int(different[0]) if len(different) else n


def _batch(bins: Sequence[_Bin], B: int, T: int) -> PackedBatch:
    tokens, positions, segments = (np.zeros((B, T), np.int32) for _ in range(3))
    actions = []
    for b, bin in enumerate(bins):
        shared = slice(0, bin.shared)
        tokens[b, shared] = bin.members[0].tokens[shared]
        positions[b, shared] = np.arange(bin.shared)
        segments[b, shared] = 1
        start = bin.shared
        for segment, row in enumerate(bin.members, start=2):
            own = slice(start, start + len(row) - bin.shared)
            tokens[b, own] = row.tokens[bin.shared :]
            positions[b, own] = np.arange(bin.shared, len(row))
            segments[b, own] = segment
            at = np.flatnonzero(row.action_mask)
            # The place of a position of the trajectory in the packed row; an action is predicted one position earlier.
            place = np.concatenate([np.arange(bin.shared), np.arange(own.start, own.stop)])
            advantages = np.full(len(at), row.advantage)
            own_fields = (field[at] for field in (row.tokens, row.sample_logprobs, row.sampled, row.routes))
            actions.append((b * T + place[at - 1], advantages, *own_fields))
            start = own.stop
    columns = (np.concatenate(parts) for parts in zip(*actions, strict=True))
    index, advantages, targets, old_logprobs, sampled, routes = columns
    n_actions = len(index)

    def slots(values: np.ndarray, dtype: type) -> np.ndarray:
        return np.pad(values, (0, B * T - n_actions)).astype(dtype)

    return PackedBatch(
        tokens=tokens,
        positions=positions,
        segments=segments,
        action_index=slots(index, np.int32),
        targets=slots(targets, np.int32),
        old_logprobs=slots(old_logprobs, np.float32),
        advantages=slots(advantages, np.float32),
        weights=slots(np.ones(n_actions), np.float32),
        sampled=slots(sampled, np.float32),
        reference_logprobs=np.zeros(B * T, np.float32),
        routes=slots(routes, np.uint32),
        n_actions=np.array(n_actions, np.int32),
    )
