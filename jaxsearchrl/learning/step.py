"""What a step of RL learns from its trajectories: one update or several, each of a share of the groups."""

from collections.abc import Callable, Sequence
from functools import reduce
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from jaxsearchrl.config import LearningConfig
from jaxsearchrl.learning.advantages import GroupAdvantages
from jaxsearchrl.learning.learner import Learner
from jaxsearchrl.learning.losses import LossStats
from jaxsearchrl.learning.packing import PackedBatch, pack, row_from
from jaxsearchrl.models.decoder import Weights
from jaxsearchrl.trajectory import Trajectory

UpdateBatches: TypeAlias = tuple[list[PackedBatch], int]
"""The batches of one update, and its N: the valid trajectories of its groups, those that are in no batch included."""


def batches_of(
    trajectories: Sequence[Trajectory], advantages: GroupAdvantages, groups: int, config: LearningConfig
) -> tuple[list[UpdateBatches], dict[str, float]]:
    """The batches of each update that has any, and counts of rows for the metrics.

    trajectories: group by group, all of one size. Rows whose advantage is 0 are packed for a KL term only, and not
    where the whole step has no signal.
    """
    skip_zero = not config.kl_weight or not advantages.advantages.any()
    size = len(trajectories) // groups
    packings = []
    for share in np.array_split(np.arange(groups), config.updates_per_step):
        rows = [
            row_from(uid, trajectories[uid], advantages.advantages[uid], observations=config.train_observations)
            for uid in range(share[0] * size, (share[-1] + 1) * size)
            if advantages.valid[uid]
        ]
        packing = pack(rows, pack_rows=config.pack_rows, pack_tokens=config.pack_tokens, skip_zero=skip_zero)
        packings.append((packing, len(rows)))
    counts = {
        "learn/rows": float(sum(packing.packed for packing, _ in packings)),
        "learn/rows_without_signal": float(sum(packing.zero_advantage for packing, _ in packings)),
        "learn/rows_without_actions": float(sum(packing.without_actions for packing, _ in packings)),
        "packed_tokens": float(sum((batch.segments > 0).sum() for packing, _ in packings for batch in packing.batches)),
    }
    return [(packing.batches, valid) for packing, valid in packings if packing.batches], counts


def learn(
    learner: Learner,
    update: Callable[[Weights, Any, Weights], tuple[Weights, Any, dict[str, Any]]],
    lora: Weights,
    opt_state: Any,
    batches: Sequence[UpdateBatches],
    config: LearningConfig,
    reference: Weights | None,
    advance: Callable[[], None],
) -> tuple[Weights, Any, dict[str, float]]:
    """The adapter and the optimizer's state after all updates (the old ones are given up), and what they saw.

    reference: the adapter that a KL term is against. advance: called for each batch. learn/router_disagreement is the
    share of sampled tokens for which the learner chose other experts than the sampler; absent where there are none.
    """
    seen, done = [], []
    for packed, valid in batches:
        grads, stats = learner.gradient(lora, packed, valid * config.loss_constant, advance, reference)
        lora, opt_state, result = update(grads, opt_state, lora)
        seen.append(stats)
        done.append({name: float(value) for name, value in result.items()})
    stats = reduce(LossStats.merged, seen)
    means = stats.means()
    trajectories = sum(valid for _, valid in batches)
    routers = {}
    if stats.sums.get("routed"):
        routers["learn/router_disagreement"] = float(stats.sums["rerouted"] / stats.sums["routed"])
    return (
        lora,
        opt_state,
        {
            "learn/skipped": 1.0 - fmean(result["updated"] for result in done),
            "learn/loss": float(stats.sums["loss"]) / (trajectories * config.loss_constant),
            "learn/grad_norm": fmean(result["grad_norm"] for result in done),
            "learn/learning_rate": done[-1]["learning_rate"],
            "learn/ratio": means["ratio"],
            "learn/logprob_gap": means["gap"],
            "learn/logprob_gap_max": means["max_gap"],
            "learn/clipped": means["clipped"],
            "learn/kl": means["kl"],
            "learn/entropy": means["entropy"],
            "learn/action_tokens": means["tokens"],
            **routers,
        },
    )
