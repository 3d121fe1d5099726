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
    advance: Callable[[], None] = lambda: None,
) -> list[Rollout]:
    """`tries` rollouts of each task, those of a task side by side; the sampler must have been renewed for this call."""
    environments = [new_environment(task) for task in tasks for _ in range(tries)]
    return run_episodes(environments, sampler, chat, config, temperature=temperature, advance=advance)


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
    records = []
    for uid, rollout in enumerate(rollouts):
        task = tasks[uid // tries]
        scored: dict[str, Any] = {}
        if rollout.score is not None:
            score = rollout.score
            scored = {"reward": score.reward, "score_parts": score.parts, "outcome": score.outcome}
            if advantages is not None:
                scored["advantage"] = float(advantages[uid])
        records.append(
            RolloutRecord(
                run=run,
                split=split,
                step=step,
                task_id=task.id,
                group=uid // tries,
                attempt=uid % tries,
                uid=uid,
                query=task.query,
                adapter=adapter,
                source=task.source,
                gold=task.gold,
                turns=tuple(rollout.turns),
                stop_reason=rollout.stop_reason,
                infrastructure_errors=tuple(rollout.errors),
                truncated=rollout.truncated,
                seconds=rollout.seconds,
                **trajectory_fields(rollout.trajectory),
                **scored,
            )
        )
    return records
