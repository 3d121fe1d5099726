"""The tool-call family: short answers to questions, found with one search tool."""

from collections.abc import Callable, Mapping, Sequence

from jaxsearchrl.config import SearchToolsConfig
from jaxsearchrl.messages import AssistantTurn, Message, ToolCall
from jaxsearchrl.search.contract import Retriever
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_tools.environment import SEARCH, SearchToolsEnvironment
from jaxsearchrl.tasks.search_tools.prompts import system_prompt
from jaxsearchrl.tasks.shown_answer import shown_answer


class SearchToolsFamily:
    """Implements `jaxsearchrl.tasks.family.Family`. It searches by `retriever`."""

    measures = ("exact", "cover", "searches", "format", "gold_in_answer", "retrieved")

    def __init__(self, options: SearchToolsConfig, retriever: Retriever):
        self._options, self.retriever = options, retriever

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """The corpus, and the words of the prompt."""
        return {"corpus": self.retriever.fingerprint, "prompt": system_prompt(self._options)}

    def check(self, tasks: Sequence[Question], path: str) -> None:
        """Any question can be scored."""

    def environment(self, task: Question, count_tokens: Callable[[str], int], step: int) -> SearchToolsEnvironment:
        """A new episode; the same at every step."""
        return SearchToolsEnvironment(task, self.retriever, self._options, count_tokens)

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
            query = " ".join(self._task.query.translate({ord("<"): " ", ord(">"): " "}).split())
            return AssistantTurn(calls=(ToolCall(SEARCH.name, {"query": query}),))
        return AssistantTurn(f"Answer: {' '.join(shown_answer(self._task, messages, self._play).split())}")
