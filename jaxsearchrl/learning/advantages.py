"""From rewards to advantages: the reward minus its group's mean, and nothing else (Dr. GRPO, arXiv:2503.20783).

Dividing by the group's deviation, as GRPO does (arXiv:2402.03300), weighs questions by how hard they are: those that
are nearly always right, or nearly never, count most. It is an option.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxsearchrl.errors import UserError

# Rewards closer than this are equal: what is left of a sum in another order must not become a training signal.
_RELATIVE_ROUNDING = 1e-9
_ABSOLUTE_ROUNDING = 1e-12
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True, eq=False)
class GroupAdvantages:
    """The advantages of one step's B trajectories, in their order.

    advantages: [B] float32; 0 for invalid trajectories and in groups without signal.
    valid: [B] bool; False for infrastructure failures, which enter neither a mean nor the count.
    """

    advantages: np.ndarray
    valid: np.ndarray

    @property
    def count(self) -> int:
        """N of the loss: the valid trajectories, those of groups without signal included."""
        return int(self.valid.sum())


def without_signal(rewards: Sequence[float] | np.ndarray) -> bool:
    """Whether a group's rewards (at least one) are all equal but for rounding, so that nothing can be learnt of it."""
    return math.isclose(min(rewards), max(rewards), rel_tol=_RELATIVE_ROUNDING, abs_tol=_ABSOLUTE_ROUNDING)


def group_advantages(
    rewards: Sequence[float] | np.ndarray,
    groups: Sequence[Hashable],
    valid: Sequence[bool] | np.ndarray,
    *,
    divide_by_deviation: bool = False,
) -> GroupAdvantages:
    """Removes from each of B rewards the mean of its group's valid rewards; computed in float64.

    divide_by_deviation: then divides by the group's deviation (over n, not n - 1) plus 1e-6.
    groups: one key per trajectory; equal keys make a group, wherever they stand. The reward of an invalid trajectory is
    not read. Raises ValueError on unequal lengths, UserError on a non-finite reward of a valid trajectory.
    """
    if not len(rewards) == len(groups) == len(valid):
        raise ValueError(f"{len(rewards)} rewards, {len(groups)} group keys and {len(valid)} valid flags")
    members: dict[Hashable, list[int]] = {}
    for index, (key, usable) in enumerate(zip(groups, valid, strict=True)):
        if not usable:
            continue
        if not math.isfinite(rewards[index]):
            raise UserError(
                f"trajectory {index} of group {key!r} has the reward {rewards[index]}; "
                "correct the reward function, or let it raise InfrastructureError where it cannot score"
            )
        members.setdefault(key, []).append(index)

    advantages = np.zeros(len(rewards), np.float64)
    for indices in members.values():
        group = np.array([rewards[index] for index in indices], np.float64)
        if not without_signal(group):  # else left at exactly 0: the mean of equal numbers can differ in the last bit
            scale = group.std() + _LEAST_DEVIATION if divide_by_deviation else 1.0
            advantages[indices] = (group - group.mean()) / scale
    return GroupAdvantages(advantages=advantages.astype(np.float32), valid=np.array(valid, bool))


def shuffled(result: GroupAdvantages, seed: int) -> GroupAdvantages:
    """The control run: the same advantages, dealt at random to the valid trajectories.

    A policy that improves under these improves for another reason than its rewards. `seed` should differ by step.
    """
    advantages = result.advantages.copy()
    advantages[result.valid] = np.random.default_rng(seed).permutation(advantages[result.valid])
    return replace(result, advantages=advantages)
