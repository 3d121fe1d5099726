"""From rewards to advantages: the reward minus its group's mean, and nothing else (Dr. GRPO, arXiv:2503.20783).

Dividing by the group's deviation would weigh questions by how hard they are, so it is not done.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxsearchrl.errors import UserError

# Rewards closer than this are equal: what is left of a sum in another order must not become a training signal.
_RELATIVE_ROUNDING = 1e-9
_ABSOLUTE_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class GroupAdvantages:
    """The advantages of one step's B trajectories, in their order, and what the step's groups looked like.

    advantages: [B] float32; 0 for invalid trajectories and in groups without signal.
    valid: [B] bool; False for infrastructure failures, which enter neither a mean nor the count.
    all_good, all_bad: groups whose valid rewards are all equal, above 0 or not; a lone one is such a group.
    """

    advantages: np.ndarray
    valid: np.ndarray
    groups: int  # those with at least one valid trajectory
    all_good: int
    all_bad: int

    @property
    def count(self) -> int:
        """N of the loss: the valid trajectories, those of groups without signal included."""
        return int(self.valid.sum())

    @property
    def no_signal(self) -> int:
        """How many groups teach nothing."""
        return self.all_good + self.all_bad


def group_advantages(
    rewards: Sequence[float] | np.ndarray,
    groups: Sequence[Hashable],
    valid: Sequence[bool] | np.ndarray,
) -> GroupAdvantages:
    """Removes from each of B rewards the mean of its group's valid rewards; computed in float64.

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
    all_good = all_bad = 0
    for indices in members.values():
        group = np.array([rewards[index] for index in indices], np.float64)
        low, high = float(group.min()), float(group.max())
        if math.isclose(low, high, rel_tol=_RELATIVE_ROUNDING, abs_tol=_ABSOLUTE_ROUNDING):
            # Left at exactly 0: the mean of equal numbers can differ from them in the last bit.
            all_good += low > 0
            all_bad += low <= 0
        else:
            advantages[indices] = group - group.mean()
    return GroupAdvantages(
        advantages=advantages.astype(np.float32),
        valid=np.array(valid, bool),
        groups=len(members),
        all_good=all_good,
        all_bad=all_bad,
    )


def shuffled(result: GroupAdvantages, seed: int) -> GroupAdvantages:
    """The control run: the same advantages, dealt at random to the valid trajectories.

    A policy that improves under these improves for another reason than its rewards. `seed` should differ by step.
    """
    advantages = result.advantages.copy()
    advantages[result.valid] = np.random.default_rng(seed).permutation(advantages[result.valid])
    return replace(result, advantages=advantages)
