"""The reward laboratory: what stored rollouts would have earned under another reward, and taught. Nothing is sampled.

A record keeps what an episode came to (its score parts); what that is worth is computed anew by its family's own pure
function. Under the settings of its own run that gives back the reward in the record. What only other behaviour would
show (that a policy avoids what now costs something) no re-scoring can tell.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau, spearmanr

from jaxsearchrl.config import CuratedConfig, GSM8KConfig, SearchR1Config, SearchToolsConfig, TaskConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.learning.advantages import group_advantages, without_signal
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.rewards.scores import annealed
from jaxsearchrl.tasks.curated import reward as curated
from jaxsearchrl.tasks.gsm8k import reward as gsm8k
from jaxsearchrl.tasks.search_r1 import reward as search_r1
from jaxsearchrl.tasks.search_tools import reward as search_tools


def reward_under(options: TaskConfig, record: RolloutRecord) -> float:
    """The reward of a scored record under other options of its family. Raises UserError if it lacks a part of these."""
    parts = record.score_parts
    try:
        match options:
            case CuratedConfig():
                return curated.worth(parts, record.stop_reason, options).reward
            case SearchR1Config():
                weight = annealed(options.format_weight, record.adapter, options.format_steps)
                return search_r1.worth(parts, options, weight)
            case SearchToolsConfig():
                return search_tools.worth(parts, options)
            case GSM8KConfig():
                return gsm8k.worth(parts, annealed(options.format_weight, record.adapter, options.format_steps))
    except KeyError as error:
        raise UserError(
            f"the record of task {record.task_id!r} has no score part {error}, which a reward of the family "
            f"{options.name!r} needs; re-score it with a configuration of its own family"
        ) from error


@dataclass(frozen=True)
class Rescored:
    """What another reward changes, over the scored episodes of one step.

    mean, mean_before: of the rewards. groups: with a scored try; of them `separated` had equal rewards and no longer
    have (tied groups that would now teach), `tied` the other way round. moved: mean absolute change of the advantage.
    turned: share of episodes whose advantage changes its sign (0 is none). spearman, kendall (τ-b): rank correlation
    of the two rewards over episodes; nan where one of them is constant.
    """

    episodes: int
    mean_before: float
    mean: float
    groups: int
    tied_before: int
    separated: tuple[int, ...]
    tied: tuple[int, ...]
    moved: float
    turned: float
    spearman: float
    kendall: float


def rescore(records: Sequence[RolloutRecord], before: TaskConfig, after: TaskConfig) -> Rescored:
    """Compares two rewards on one step's records. Raises UserError when nothing was scored, or as `reward_under`."""
    scored = [record for record in records if not record.failed]
    if not scored:
        raise UserError("no episode has a score: the infrastructure failed them all")
    groups = [record.group for record in scored]
    old, new = (np.array([reward_under(options, record) for record in scored]) for options in (before, after))
    first, second = (group_advantages(rewards, groups, [True] * len(scored)).advantages for rewards in (old, new))
    tied = {
        group: tuple(without_signal(rewards[np.equal(groups, group)]) for rewards in (old, new)) for group in groups
    }
    return Rescored(
        episodes=len(scored),
        mean_before=float(old.mean()),
        mean=float(new.mean()),
        groups=len(tied),
        tied_before=sum(then for then, _ in tied.values()),
        separated=tuple(group for group, (then, now) in tied.items() if then and not now),
        tied=tuple(group for group, (then, now) in tied.items() if now and not then),
        moved=float(np.abs(second - first).mean()),
        turned=float(np.mean(np.sign(first) != np.sign(second))),
        spearman=_correlation(spearmanr, old, new),
        kendall=_correlation(kendalltau, old, new),
    )


def _correlation(of: object, old: np.ndarray, new: np.ndarray) -> float:
    if without_signal(old) or without_signal(new):
        return math.nan
    return float(of(old, new).statistic)  # type: ignore[operator]
