"""What the rollouts of a step say, as numbers by name.

Computed before any group is dropped, so that a run that learns nothing, or learns to curate anything, shows it. Means
are over scored episodes; what the infrastructure failed is counted and enters nothing else. A share of nothing (valid
calls where no call was made) is left out.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from jaxsearchrl.learning.advantages import without_signal
from jaxsearchrl.records import RolloutRecord


def rollout_metrics(records: Sequence[RolloutRecord], group_size: int) -> dict[str, float]:
    """The metrics of one step and split. Raises ValueError unless every group has its G = `group_size` tries once.

    reward, score/*      means of the reward and of each part of the score, over the episodes that have the part
    rate/*               shares of episodes: empty, finished, truncated; nonempty (scored and not empty, of all)
    turns, calls         per episode; calls/valid and calls/duplicate are shares of all calls
    tokens/*             per episode
    groups/*             shares of groups whose rewards are all equal (no_signal), all equal and above 0 (all_good), or
                         all equal and not (all_bad)
    entropy              -mean of the log-probs of the sampled tokens, nats
    episode_seconds/*    wall seconds of an episode: p50, p95, max
    infrastructure/*     failed episodes, and errors (those that a retry healed too)
    """
    groups = _groups(records, group_size)
    scored = [record for record in records if not record.failed]
    failed = len(records) - len(scored)
    metrics = {
        "episodes": float(len(records)),
        "infrastructure/failed": float(failed),
        "infrastructure/failed_share": failed / max(len(records), 1),
        "infrastructure/errors": float(sum(len(record.infrastructure_errors) for record in records)),
    }
    if not scored:
        return metrics
    metrics["reward"] = _mean(record.reward or 0.0 for record in scored)
    for part in sorted({part for record in scored for part in record.score_parts}):
        metrics[f"score/{part}"] = _mean(r.score_parts[part] for r in scored if part in r.score_parts)
    empty = [is_empty(record) for record in scored]
    metrics["rate/empty"] = _mean(empty)
    metrics["rate/nonempty"] = empty.count(False) / len(records)
    metrics["rate/finished"] = _mean(record.stop_reason == "finish" for record in scored)
    metrics["rate/truncated"] = _mean(record.truncated for record in scored)
    metrics["turns"] = _mean(len(record.turns) for record in scored)
    for kind in ("prompt", "sampled", "observation"):
        metrics[f"tokens/{kind}"] = _mean(record.span_tokens(kind) for record in scored)
    seconds = [record.seconds for record in scored]
    metrics["episode_seconds/p50"], metrics["episode_seconds/p95"] = map(float, np.percentile(seconds, [50, 95]))
    metrics["episode_seconds/max"] = max(seconds)
    return metrics | _calls(scored) | _entropy(scored) | _signal(groups)


def expert_metrics(load: np.ndarray | None) -> dict[str, float]:
    """How evenly experts were chosen. load: how often each was, [layers with experts, E]; None without experts.

    experts/load_max     how often the busiest expert of a layer is chosen, over the mean of the layer's experts: 1 if
                         all are as busy, E / chosen if all tokens choose the same; the largest of all layers
    experts/unused       share of experts, of all layers, that were never chosen
    """
    if load is None or not load.any():
        return {}
    return {
        "experts/load_max": float((load.max(-1) / load.mean(-1)).max()),
        "experts/unused": float((load == 0).mean()),
    }


def label(name: str) -> str:
    """A measure's name in running text."""
    return "F-beta" if name == "f_beta" else name.replace("_", " ")


def _groups(records: Sequence[RolloutRecord], group_size: int) -> list[list[RolloutRecord]]:
    groups: dict[int, list[RolloutRecord]] = defaultdict(list)
    for record in records:
        groups[record.group].append(record)
    for number, group in groups.items():
        attempts = sorted(record.attempt for record in group)
        if attempts != list(range(group_size)) or len({record.task_id for record in group}) != 1:
            tasks = sorted({record.task_id for record in group})
            raise ValueError(f"group {number} has tries {attempts} of tasks {tasks}, not one task's {group_size} tries")
    return list(groups.values())


def is_empty(record: RolloutRecord) -> bool:
    """As the score says it (an ending may void a set); by the curated set for a task whose score has no such part."""
    return record.score_parts["empty"] > 0 if "empty" in record.score_parts else not record.curated


def _calls(scored: Sequence[RolloutRecord]) -> dict[str, float]:
    total = valid = duplicate = 0
    for record in scored:
        seen = set()
        for call in (call for turn in record.turns for call in turn.calls):
            total += 1
            valid += call.ok
            key = (call.name, json.dumps(call.arguments, sort_keys=True) if call.name else call.outcome)
            duplicate += key in seen
            seen.add(key)
    metrics = {"calls": total / len(scored)}
    return metrics | ({"calls/valid": valid / total, "calls/duplicate": duplicate / total} if total else {})


def _entropy(scored: Sequence[RolloutRecord]) -> dict[str, float]:
    logprobs = [logprob for record in scored for logprob in record.sample_logprobs]
    return {"entropy": -_mean(logprobs)} if logprobs else {}


def _signal(groups: Sequence[Sequence[RolloutRecord]]) -> dict[str, float]:
    rewards = [[record.reward for record in group if record.reward is not None] for group in groups]
    rewards = [group for group in rewards if group]
    constant = [min(group) for group in rewards if without_signal(group)]
    good = sum(reward > 0 for reward in constant)
    return {
        "groups/total": float(len(rewards)),
        "groups/no_signal": len(constant) / len(rewards),
        "groups/all_good": good / len(rewards),
        "groups/all_bad": (len(constant) - good) / len(rewards),
    }


def _mean(values: Iterable[float]) -> float:
    numbers = [float(value) for value in values]
    return math.fsum(numbers) / len(numbers)  # exact summing: the order of episodes changes nothing
