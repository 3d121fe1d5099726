"""From tasks to rollouts and their records: G tries of each task, played by the current policy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxsearchrl.chat.format import ChatFormat
from jaxsearchrl.config import SamplingConfig
from jaxsearchrl.records import RolloutRecord, trajectory_fields
from jaxsearchrl.rollouts.loop import Rollout, run_episodes
from jaxsearchrl.sampling.contract import Sampler
from jaxsearchrl.tasks.environment import Environment
from jaxsearchrl.tasks.family import Task


def collect(
    tasks: Sequence[Task],
    tries: int,
    new_environment: Callable[[Task], Environment],
    sampler: Sampler,
    chat: ChatFormat,
    config: SamplingConfig,
    *,
    temperature: float,
    uids: Sequence[int] | None = None,
    ended: Callable[[int, Rollout], None] = lambda uid, rollout: None,
) -> list[Rollout]:
    """`tries` rollouts of each task, those of a task side by side; the sampler must have been renewed for this call.

    uids: which of these episodes to play; all by default. Each is the same whichever others are played.
    """
    uids = range(len(tasks) * tries) if uids is None else uids
    environments = [new_environment(tasks[uid // tries]) for uid in uids]
    return run_episodes(environments, sampler, chat, config, temperature=temperature, uids=uids, ended=ended)


def to_records(
    rollouts: Sequence[Rollout],
    tasks: Sequence[Task],
    tries: int,
    *,
    run: str,
    split: str,
    step: int,
    adapter: int = 0,
    advantages: np.ndarray | None = None,
) -> list[RolloutRecord]:
    """The records of what `collect` returned.

    adapter: how many steps the policy had seen; advantages [B] where they are known.
    """
    about = {"run": run, "split": split, "step": step, "adapter": adapter}
    known: Sequence[float | None] = [None] * len(rollouts) if advantages is None else [*map(float, advantages)]
    return [
        to_record(rollout, uid, tasks, tries, advantage=advantage, **about)
        for uid, (rollout, advantage) in enumerate(zip(rollouts, known, strict=True))
    ]


def to_record(
    rollout: Rollout, uid: int, tasks: Sequence[Task], tries: int, *, advantage: float | None = None, **about: Any
) -> RolloutRecord:
    """The record of one episode of those; about: run, split, step and adapter, as above."""
    task, score = tasks[uid // tries], rollout.score
    scored: dict[str, Any] = {}
    if score is not None:
        scored = {"reward": score.reward, "score_parts": score.parts, "outcome": score.outcome, "advantage": advantage}
    return RolloutRecord(
        task_id=task.id,
        group=uid // tries,
        attempt=uid % tries,
        uid=uid,
        query=task.query,
        source=task.source,
        gold=task.gold,
        turns=tuple(rollout.turns),
        stop_reason=rollout.stop_reason,
        infrastructure_errors=tuple(rollout.errors),
        truncated=rollout.truncated,
        seconds=rollout.seconds,
        **trajectory_fields(rollout.trajectory),
        **scored,
        **about,
    )
