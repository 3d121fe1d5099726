"""What no agent at all achieves."""

from collections.abc import Mapping, Sequence

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.messages import AssistantTurn, Message, ToolCall
from jaxsearchrl.search.contract import Retriever
from jaxsearchrl.tasks.curated.data import Task
from jaxsearchrl.tasks.curated.replies import shown_ids
from jaxsearchrl.tasks.curated.reward import Counters, score
from jaxsearchrl.tasks.environment import Score

CHOICES = (1, 2, 3, 5, 10)
CHOOSE_ON = 128
"""k is chosen among CHOICES on this many training tasks."""


def best_top_k(
    train: Sequence[Task], evaluation: Sequence[Task], retriever: Retriever, options: CuratedConfig
) -> tuple[int, Mapping[str, float]]:
    """The best k on training tasks, and F-beta of curating that many hits of the raw question, by evaluation task."""

    def f_beta(tasks: Sequence[Task], k: int) -> dict[str, float]:
        return {task.id: curate_top_k(task, retriever, k, options).parts["f_beta"] for task in tasks}

    choices = [k for k in CHOICES if k <= options.max_curated]
    k = max(choices, key=lambda k: sum(f_beta(train[:CHOOSE_ON], k).values()))
    return k, f_beta(evaluation, k)


class QuestionAgent:
    """The same by the tools, under an episode's own limits: searches once, curates what it is shown, and finishes."""

    def __init__(self, k: int):
        self._k = k

    def act(self, messages: Sequence[Message]) -> AssistantTurn:
        """The next turn."""
        answers = [message.content for message in messages if message.role == "tool"]
        if not answers:
            query = next(message.content for message in messages if message.role == "user")
            return AssistantTurn(calls=(ToolCall("bm25_search", {"query": " ".join(query.split()), "k": self._k}),))
        found = shown_ids(answers[0])
        curate = (ToolCall("curate", {"document_ids": found}),) if found else ()
        return AssistantTurn(calls=(*curate, ToolCall("finish", {})))


def curate_top_k(task: Task, retriever: Retriever, k: int, options: CuratedConfig) -> Score:
    """The score of one search with the query as it is, all its k best hits curated, and finish.

    Raises ValueError unless 1 <= k <= `options.max_curated`; InfrastructureError as the retriever does.
    """
    if not 1 <= k <= options.max_curated:
        raise ValueError(f"k = {k} must lie in 1..{options.max_curated}, the size of a curated set")
    ids = [hit.document.id for hit in retriever.search(task.query, k)]
    return score(ids, ids, task.facts, options, Counters(turns=1, tool_calls=1, stop_reason="finish"))
