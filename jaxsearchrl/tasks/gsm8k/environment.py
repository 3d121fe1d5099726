"""One episode of GSM8K: a sum in words, one turn, no tools."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxsearchrl.config import GSM8KConfig
from jaxsearchrl.messages import AssistantTurn, Message, ToolSpec
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.gsm8k.prompts import question_prompt
from jaxsearchrl.tasks.gsm8k.reward import score
from jaxsearchrl.tasks.questions import Question


class GSM8KEnvironment:
    """Implements `jaxsearchrl.tasks.environment.Environment`. Every episode ends by "finish" after its turn.

    format_weight: what an answer in its tags adds to the reward.
    """

    tools: Sequence[ToolSpec] = ()

    def __init__(self, task: Question, options: GSM8KConfig, format_weight: float) -> None:
        self._task, self._options, self._format_weight = task, options, format_weight
        self._turn: AssistantTurn | None = None

    def reset(self) -> list[Message]:
        """The question in its prompt; starts the episode anew."""
        self._turn = None
        return [Message("user", question_prompt(self._options, self._task.query))]

    def step(self, turn: AssistantTurn) -> tuple[list[Message], bool]:
        """Takes the answer."""
        if self._turn is not None:
            raise RuntimeError('the episode is over ("finish")')
        self._turn = turn
        return [], True

    def score(self) -> Score:
        """The score of the turn; that of silence before it."""
        return score(self._task, self._turn or AssistantTurn(), self._format_weight)

    def last_step(self) -> Mapping[str, Any]:
        """Nothing: there are no tools."""
        return {}

    @property
    def stop_reason(self) -> str:
        """ "finish" after the turn."""
        return "finish" if self._turn else ""
