"""The GSM8K family: sums in words."""

from collections.abc import Callable, Mapping, Sequence

from jaxsearchrl.config import GSM8KConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.messages import AssistantTurn, Message
from jaxsearchrl.rewards.numeric import numeric_value
from jaxsearchrl.rewards.scores import annealed
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.gsm8k.environment import GSM8KEnvironment
from jaxsearchrl.tasks.gsm8k.prompts import template
from jaxsearchrl.tasks.questions import Question


class GSM8KFamily:
    """Implements `jaxsearchrl.tasks.family.Family`."""

    measures = ("exact", "format", "tagged")

    def __init__(self, options: GSM8KConfig):
        self._options = options

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """The words of the prompt."""
        return {"prompt": template(self._options)}

    def check(self, tasks: Sequence[Question], path: str) -> None:
        """Raises UserError for an answer that is no number: nothing would ever equal it."""
        for task in tasks:
            for answer in task.answers:
                if numeric_value(answer) is None:
                    raise UserError(f'{path}: task "{task.id}" has the answer {answer!r}, which is no number')

    def environment(self, task: Question, count_tokens: Callable[[str], int], step: int) -> GSM8KEnvironment:
        """A new episode; what the form adds to the reward falls with the steps."""
        weight = annealed(self._options.format_weight, step, self._options.format_steps)
        return GSM8KEnvironment(task, self._options, weight)

    def expert(self, task: Question) -> "Expert":
        """An agent that gives the gold number in its tags: it teaches the form, and no arithmetic."""
        return Expert(task)

    def asker(self, train: Sequence[Question]) -> None:
        """None: nothing is searched."""

    def imitable(self, score: Score) -> bool:
        """Every episode is."""
        return True

    def baseline(self, train: Sequence[Question], evaluation: Sequence[Question]) -> None:
        """None."""


class Expert:
    """Says the gold number in the right form."""

    def __init__(self, task: Question):
        self._task = task

    def act(self, messages: Sequence[Message]) -> AssistantTurn:
        """Its only turn."""
        return AssistantTurn(f"<answer> {self._task.answers[0]} </answer>", reasoning="I work it out step by step.")
