"""Tries put together: by question and step, and what the drawings of several have in common."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxsearchrl.viewer.summary import Summary

# Parts of the score that other columns show.
_ELSEWHERE = {"turns", "tool_calls", "curated_count", "empty", "malformed_calls"}
_FOUND_ALL = ("complete", "right")  # outcomes


@dataclass(frozen=True)
class Group:
    """The tries of one question in one step."""

    tries: tuple[Summary, ...]

    @property
    def first(self) -> Summary:
        return self.tries[0]

    @property
    def key(self) -> str:
        """The question's place in addresses."""
        return key_of(self.first.task_id, self.first.query)

    @property
    def rewards(self) -> list[float]:
        return [summary.reward for summary in self.tries if summary.reward is not None]

    @property
    def mean(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def best(self) -> float | None:
        return max(self.rewards, default=None)

    @property
    def spread(self) -> float:
        return max(self.rewards, default=0.0) - min(self.rewards, default=0.0)

    @property
    def traits(self) -> list[str]:
        """What filters ask for. A group fails when no try earned anything."""
        flagged = any(summary.flags for summary in self.tries)
        return [
            name
            for name, holds in (
                ("all-fail", all(reward <= 0 for reward in self.rewards)),
                ("no-signal", self.spread == 0),
                ("mixed", self.spread > 0),
                ("flagged", flagged),
                ("solved", pass_rate(self.tries) > 0),
            )
            if holds
        ]


def groups_of(summaries: Sequence[Summary]) -> list[Group]:
    """The groups in the order of the file."""
    groups: dict[tuple[int, str], list[Summary]] = {}
    for summary in summaries:
        groups.setdefault((summary.group, summary.task_id), []).append(summary)
    return [Group(tuple(tries)) for tries in groups.values()]


def part_names(summaries: Sequence[Summary]) -> list[str]:
    """The parts of the score that say something: those that are not 0 everywhere, nor in a column of their own."""
    names = dict.fromkeys(name for summary in summaries for name in summary.parts)
    return [n for n in names if n not in _ELSEWHERE and any(summary.parts.get(n) for summary in summaries)]


def scale_of(summaries: Sequence[Summary]) -> dict[str, Any]:
    """What the drawings of several tries have in common."""
    rewards = [summary.reward for summary in summaries if summary.reward is not None]
    advantages = [abs(summary.advantage) for summary in summaries if summary.advantage is not None]
    return {
        "longest": max((summary.tokens for summary in summaries), default=1),
        "low": min(0.0, *rewards) if rewards else 0.0,
        "high": max(1.0, *rewards) if rewards else 1.0,
        "advantage": max(advantages, default=0.0),
    }


def key_of(*names: str) -> str:
    """The place in addresses of a document, by its id, or of a task, by id and query: ids may hold anything.

    Two files of tasks, or two sources, may give one id to different questions.
    """
    return hashlib.blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def pass_rate(tries: Sequence[Summary]) -> float:
    """The share of tries that found everything: their outcome is `complete` or `right`."""
    return sum(s.outcome in _FOUND_ALL for s in tries) / max(1, len(tries))
