"""The contract of a task family: what the rest of the program asks of it. One folder each implements it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jaxsearchrl.tasks.environment import Agent, Environment, Score


class Task(Protocol):
    """One question. `source` names the collection that it comes from, "" where there is one only."""

    @property
    def id(self) -> str: ...

    @property
    def query(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def gold(self) -> Mapping[str, Any]:
        """What counts as right, ready for JSON."""
        ...


@dataclass(frozen=True)
class Baseline:
    """What no agent at all achieves: what it does, in words, and a family's first measure by task id."""

    words: str
    values: Mapping[str, float]


class Family(Protocol):
    """One family with its options and, where it searches, its index."""

    @property
    def measures(self) -> tuple[str, ...]:
        """Parts of the score that evaluations give with intervals. By the first, one checkpoint is better than another.

        Notes show the first three, reports the first four.
        """
        ...

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """Of what must not change within a run, beside the tasks themselves."""
        ...

    def check(self, tasks: Sequence[Any], path: str) -> None:
        """Raises UserError naming `path`, their file, for tasks that cannot be scored."""
        ...

    def environment(self, task: Any, count_tokens: Callable[[str], int], step: int) -> Environment:
        """A new episode of a task. count_tokens: the unit of budgets; step: updates that the policy has seen."""
        ...

    def expert(self, task: Any) -> Agent:
        """A scripted agent that plays the task well: what a warm start imitates."""
        ...

    def asker(self, train: Sequence[Any]) -> Agent | None:
        """An agent that searches for the question as it is, once, and hands over what it finds.

        What it has to choose is chosen on training tasks. None where a model is needed for that.
        """
        ...

    def imitable(self, score: Score) -> bool:
        """Whether an episode of the expert with this score teaches what it should: a warm start leaves others out."""
        ...

    def baseline(self, train: Sequence[Any], evaluation: Sequence[Any]) -> Baseline | None:
        """On the evaluation tasks; what it has to choose is chosen on training tasks. None: the family has none."""
        ...
