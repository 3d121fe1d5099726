"""Signs that a run goes wrong, or looks healthy and learns nothing, in words that say what to try.

All thresholds stand here. A level is a mean over the last WINDOW steps, LEAST at the least, so that one odd step of a
few episodes raises nothing; a drift compares that mean with the mean of the first WINDOW steps, so it needs 2 · WINDOW
steps. A metric that a row lacks, or that is not finite there, counts in no mean.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxsearchrl.config import AlarmName

Rows = Sequence[Mapping[str, Any]]

WINDOW, LEAST = 8, 4


@dataclass(frozen=True)
class Alarm:
    """What was seen (with the threshold), what it means, and what to try."""

    name: AlarmName
    seen: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.seen}; {self.meaning}: {self.remedy}"


@dataclass(frozen=True)
class _Level:
    """An alarm when the mean of a metric is above (or below) a threshold."""

    name: AlarmName
    metric: str
    side: str
    threshold: float
    meaning: str
    remedy: str

    def look(self, rows: Rows) -> str | None:
        value = _mean(rows[-WINDOW:], self.metric)
        beyond = (
            len(rows) >= LEAST
            and value is not None
            and (value > self.threshold if self.side == ">" else value < self.threshold)
        )
        return f"{self.metric} is {value:.3g} ({self.side} {self.threshold:g})" if beyond else None


@dataclass(frozen=True)
class _Drift:
    """An alarm when a metric has moved since the run's start: by more than `by`, or to more (less) than `by` times it.

    by is signed for a move (-0.2: down by more than 0.2); with `times`, by > 1 is a growth and by < 1 a fall.
    """

    name: AlarmName
    metric: str
    by: float
    meaning: str
    remedy: str
    times: bool = False

    def look(self, rows: Rows) -> str | None:
        if len(rows) < 2 * WINDOW:
            return None
        first, last = _mean(rows[:WINDOW], self.metric), _mean(rows[-WINDOW:], self.metric)
        if first is None or last is None or (self.times and first <= 0):
            return None
        moved, still = (last / first, 1.0) if self.times else (last - first, 0.0)
        if moved < self.by if self.by < still else moved > self.by:
            limit = f"{self.by:g} times" if self.times else f"{self.by:+g}"
            return f"{self.metric} went from {first:.3g} to {last:.3g} (more than {limit})"
        return None


_RULES: tuple[_Level | _Drift, ...] = (
    _Level(
        "no signal",
        "groups/no_signal",
        ">",
        0.5,
        "most groups have equal rewards and teach nothing",
        "other tasks, more tries, or a reward that tells tries apart",
    ),
    _Level(
        "all bad",
        "groups/all_bad",
        ">",
        0.5,
        "no try of most questions earns anything",
        "easier tasks or a warm start",
    ),
    _Level(
        "empty",
        "rate/empty",
        ">",
        0.5,
        "most episodes hand over nothing: no document, no answer",
        "read a few rollouts; a warm start, or more turns and context",
    ),
    _Level(
        "not finished",
        "rate/finished",
        "<",
        0.5,
        "most episodes do not end by themselves",
        "look at stop reasons, turns and context; task.unfinished_penalty",
    ),
    _Drift(
        "broken finish",
        "rate/finished",
        -0.25,
        "the policy unlearns to end its episodes, as nothing depends on it",
        "make the ending count (task.unfinished_penalty), and read a few rollouts",
    ),
    _Level(
        "truncation",
        "rate/truncated",
        ">",
        0.2,
        "turns are cut by the token limit",
        "raise sampling.max_turn_tokens, or penalise length",
    ),
    _Level(
        "tool errors",
        "calls/valid",
        "<",
        0.7,
        "many tool calls fail",
        "read a few rollouts; task.format_penalty, a warm start",
    ),
    _Drift(
        "call format drift",
        "calls/valid",
        -0.2,
        "calls that were well-formed no longer are",
        "task.format_penalty, a smaller learning rate",
    ),
    _Drift(
        "answer format drift",
        "score/format",
        -0.25,
        "the policy leaves the form that the task asks for",
        "a format reward (task.format_weight), a smaller learning rate",
    ),
    _Level(
        "duplicate calls",
        "calls/duplicate",
        ">",
        0.3,
        "the policy repeats its calls",
        "fewer turns, or results that differ (task.search_default_k)",
    ),
    _Level(
        "entropy collapse",
        "entropy",
        "<",
        0.05,
        "the policy hardly varies: tries of a group become copies",
        "a smaller learning rate, learning.kl_weight, temperature 1",
    ),
    _Drift(
        "entropy fall",
        "entropy",
        0.25,
        "the policy varies far less than at first",
        "a smaller learning rate, learning.kl_weight, other tasks",
        times=True,
    ),
    _Drift(
        "length collapse",
        "tokens/sampled",
        0.4,
        "episodes become short: the policy may have stopped to search",
        "look at searches and turns; a reward for what is found (task.discovery_bonus), a smaller learning rate",
        times=True,
    ),
    _Drift(
        "length blow-up",
        "tokens/sampled",
        2.5,
        "episodes become long without end",
        "a limit on turns or tokens, and a look at what is repeated",
        times=True,
    ),
    _Level(
        "log-prob gap",
        "learn/logprob_gap",
        ">",
        0.05,
        "sampler and learner disagree on log-probs (mean absolute difference, nats)",
        "the same dtype and temperature in both; fewer learning.updates_per_step",
    ),
    _Level(
        "KL blow-up",
        "learn/kl",
        ">",
        0.5,
        "the policy is far from where RL began (nats per token)",
        "a smaller learning rate, a larger learning.kl_weight",
    ),
    _Level(
        "no update",
        "learn/skipped",
        ">",
        0.5,
        "steps change nothing: learn/grad_norm is 0, or not all is finite",
        "groups without signal first; else look for null in metrics.jsonl",
    ),
    _Level(
        "lost episodes",
        "infrastructure/failed_share",
        ">",
        0.05,
        "the infrastructure fails episodes",
        "look at infrastructure_errors in the records",
    ),
    _Level(
        "search engine",
        "search/success_rate",
        "<",
        0.95,
        "searches elsewhere fail, and what is learnt depends on them",
        "look at the engine, its limits and task.retriever.timeout",
    ),
)

CURATES_ANYTHING = (-0.1, -0.1)
"""Falls of rate/empty and of score/precision that together raise "curate anything"."""
# An alarm that is left out beside another one: that one explains it.
_EXPLAINED: dict[AlarmName, AlarmName] = {
    "no update": "no signal",
    "entropy fall": "entropy collapse",
    "call format drift": "tool errors",
}


def alarms(rows: Rows) -> list[Alarm]:
    """The alarms at the end of a history: the rows of one kind of metrics.jsonl, in order."""
    raised = [
        Alarm(rule.name, seen, rule.meaning, rule.remedy) for rule in _RULES if (seen := rule.look(rows)) is not None
    ]
    raised += [alarm for alarm in (_curates_anything(rows), _stands_still(rows)) if alarm]
    names = {alarm.name for alarm in raised}
    return [alarm for alarm in raised if _EXPLAINED.get(alarm.name) not in names]


def alarm_history(rows: Rows) -> list[tuple[int, Alarm]]:
    """(step, alarm) of all steps in order: what `alarms` says where the step's row is the last."""
    return [(row["step"], alarm) for end, row in enumerate(rows, start=1) for alarm in alarms(rows[:end])]


def _curates_anything(rows: Rows) -> Alarm | None:
    """The known hack of a flat penalty for nothing: then any set pays, whatever is in it."""
    if len(rows) < 2 * WINDOW:
        return None
    falls, seen = [], []
    for metric, limit in zip(("rate/empty", "score/precision"), CURATES_ANYTHING, strict=True):
        first, last = _mean(rows[:WINDOW], metric), _mean(rows[-WINDOW:], metric)
        if first is None or last is None:
            return None
        falls.append(last - first < limit)
        seen.append(f"{metric} fell from {first:.3g} to {last:.3g}")
    if not all(falls):
        return None
    return Alarm(
        "curate anything",
        f"{' while '.join(seen)} (each by more than 0.1)",
        "the policy hands over whatever it finds to avoid the penalty of an empty set",
        "a smaller task.empty_penalty, a smaller task.beta or a task.document_cost; more groups per step",
    )


def _stands_still(rows: Rows) -> Alarm | None:
    places = [row["data/position"] for row in rows[-2:] if row.get("data/position") is not None]
    if len(places) < 2 or places[1] > places[0]:
        return None
    return Alarm(
        "data stands still",
        f"data/position went from {places[0]:g} to {places[1]:g} in a step",
        "the run trains on tasks that it has just seen",
        "check what a resume restored, and train.groups_per_step",
    )


def _mean(rows: Rows, metric: str) -> float | None:
    values = [row[metric] for row in rows if isinstance(row.get(metric), int | float) and math.isfinite(row[metric])]
    return math.fsum(values) / len(values) if values else None
