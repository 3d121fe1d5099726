"""The Search-R1 family: short answers to questions, found by searching, all in tags."""

from collections.abc import Callable, Mapping, Sequence

from jaxsearchrl.config import SearchR1Config
from jaxsearchrl.messages import AssistantTurn, Message, ToolCall
from jaxsearchrl.rewards.scores import annealed
from jaxsearchrl.rewards.tags import without_tags
from jaxsearchrl.search.contract import Retriever
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_r1.environment import SearchR1Environment
from jaxsearchrl.tasks.search_r1.prompts import template
from jaxsearchrl.tasks.shown_answer import shown_answer


class SearchR1Family:
    """Implements `jaxsearchrl.tasks.family.Family`. It searches by `retriever`."""

    measures = ("exact", "cover", "searches", "format", "gold_in_answer", "retrieved")

    def __init__(self, options: SearchR1Config, retriever: Retriever):
        self._options, self.retriever = options, retriever

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """The corpus, and the words of the prompt."""
        return {"corpus": self.retriever.fingerprint, "prompt": template(self._options)}

    def check(self, tasks: Sequence[Question], path: str) -> None:
        """Any question can be scored."""

    def environment(self, task: Question, count_tokens: Callable[[str], int], step: int) -> SearchR1Environment:
        """A new episode; what the form adds to the reward falls with the steps."""
        weight = annealed(self._options.format_weight, step, self._options.format_steps)
        return SearchR1Environment(task, self.retriever, self._options, count_tokens, weight)

    def expert(self, task: Question) -> "Expert":
        """An agent that searches for the question once and answers with the gold answer that it was shown."""
        return Expert(task, self._options.play)

    def asker(self, train: Sequence[Question]) -> None:
        """None: without a model nothing answers a question."""

    def imitable(self, score: Score) -> bool:
        """Where an answer was shown: the others would teach to make answers up."""
        return bool(score.parts["retrieved"]) or self._options.play == "direct"

    def baseline(self, train: Sequence[Question], evaluation: Sequence[Question]) -> None:
        """None: without a model nothing answers a question (`task.play` has what to compare with)."""


class Expert:
    """Searches for the question as it is, if it may, and then says the first gold answer that it has been shown."""

    def __init__(self, task: Question, play: str):
        self._task, self._play = task, play

    def act(self, messages: Sequence[Message]) -> AssistantTurn:
        """The next turn."""
        if self._play == "agent" and not any(message.role == "tool" for message in messages):
            query = " ".join(without_tags(self._task.query).split())
            text = f"<think>I do not know this for sure. I will search for it.</think>\n<search> {query} </search>"
            return AssistantTurn(text, calls=(ToolCall("search", {"query": query}),))
        answer = " ".join(without_tags(shown_answer(self._task, messages, self._play)).split())
        text = f"<think>Now I know the answer.</think>\n<answer> {answer} </answer>"
        return AssistantTurn(text, calls=(ToolCall("answer", {"text": answer}),))
