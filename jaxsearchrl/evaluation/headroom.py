"""Is there anything for RL to sharpen? What the best of a policy's tries is worth beyond the mean, and on which tasks.

RL makes more frequent what a policy does sometimes. Where all tries of a task earn the same, a group teaches nothing:
because the task is always failed, because it is always solved, or because no try hands anything over, which is a matter
of limits and format more than of search.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxsearchrl.evaluation.evaluate import by_measure
from jaxsearchrl.evaluation.reliability import is_solved
from jaxsearchrl.evaluation.statistics import Estimate, mean_estimate, paired_difference
from jaxsearchrl.learning.advantages import without_signal
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.telemetry.metrics import is_empty, label

LEAST_VARIED = 0.1
"""Below this share of tasks whose tries earn different rewards there is hardly anything to learn from."""
MUCH_IDLE = 0.25
"""From this share of tasks on which no try hands anything over, behaviour comes before search."""

_IDLE = {
    "context": "the context was used up",
    "turns": "the turns were used up",
    "tool_calls": "the calls were used up",
    "no_call": "a turn without a call",
    "malformed": "a malformed call",
    "invalid": "a turn that broke the rules",
    "finish": "finished with nothing",
}


@dataclass(frozen=True)
class Headroom:
    """Of T tasks with scored tries. measure: what mean, best and gap (best minus mean, task by task) are of.

    never, sometimes, always: tasks that no, some, all tries solve. idle: tasks of which no try handed anything over, by
    the commonest cause. varied: tasks whose tries earn different rewards.
    """

    measure: str
    tasks: int
    tries: int
    mean: Estimate
    best: Estimate
    gap: Estimate
    never: int
    sometimes: int
    always: int
    idle: dict[str, int]
    varied: int

    def verdict(self) -> str:
        """Whether RL has something to sharpen, in words."""
        idle = sum(self.idle.values())
        causes = ", ".join(f"{cause}: {count}" for cause, count in self.idle.items())
        stuck = f" On {idle} of {self.tasks} tasks no try hands anything over ({causes})." if idle else ""
        if self.tries == self.tasks:
            return "Not to be seen from one try per task: evaluate with more." + stuck
        if self.varied >= LEAST_VARIED * self.tasks:
            much = self.gap.low is None or self.gap.low > 0
            words = (
                f"{'Yes' if much else 'Little'}: tries of one task earn different rewards on {self.varied} of "
                f"{self.tasks} tasks, and the best of them is {self.gap.mean:.3f} above their mean in "
                f"{label(self.measure)}{'' if much else ', which is inside the noise'}."
            )
            behaviour = " Much of it is behaviour, not search: limits, format and prompt come first."
            return words + stuck + (behaviour if idle >= MUCH_IDLE * self.tasks else "")
        if self.always > self.never:
            return (
                f"Hardly: {self.always} of {self.tasks} tasks are solved in every try. Harder tasks would teach."
                + stuck
            )
        return (
            f"Hardly: on {self.tasks - self.varied} of {self.tasks} tasks all tries earn the same, and {self.never} "
            "are never solved. RL sharpens what happens sometimes: a warm start, easier tasks or more tries." + stuck
        )


def headroom(records: Sequence[RolloutRecord], measure: str) -> Headroom | None:
    """Of one evaluation's records, in `measure`; None when nothing was scored."""
    values = by_measure(records, measure)
    if not values:
        return None
    tasks: dict[str, list[RolloutRecord]] = {}
    for record in records:
        if not record.failed:
            tasks.setdefault(record.task_id, []).append(record)
    solved = [sum(map(is_solved, tries)) for tries in tasks.values()]
    always = sum(count == len(tries) for count, tries in zip(solved, tasks.values(), strict=True))
    best = {task: [max(tries)] for task, tries in values.items()}
    mean = mean_estimate(values)
    return Headroom(
        measure=measure,
        tasks=len(tasks),
        tries=sum(map(len, tasks.values())),
        mean=mean,
        best=replace(mean_estimate(best), tries=mean.tries),
        gap=replace(paired_difference(best, values), tries=mean.tries),
        never=solved.count(0),
        sometimes=len(tasks) - solved.count(0) - always,
        always=always,
        idle=dict(Counter(_cause(tries) for tries in tasks.values() if all(map(is_empty, tries))).most_common()),
        varied=sum(not without_signal([record.reward or 0.0 for record in tries]) for tries in tasks.values()),
    )


def idle_cause(record: RolloutRecord) -> str:
    """Why an episode handed nothing over: a turn cut off at the token limit, else how the episode ended."""
    if record.truncated:
        return "a turn was cut off at the token limit"
    return _IDLE.get(record.stop_reason, record.stop_reason or "unknown")


def _cause(tries: Sequence[RolloutRecord]) -> str:
    return Counter(map(idle_cause, tries)).most_common(1)[0][0]
