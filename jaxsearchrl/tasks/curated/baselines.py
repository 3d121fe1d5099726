"""What no agent at all achieves."""

from jaxsearchrl.config import TaskConfig
from jaxsearchrl.search.contract import Retriever
from jaxsearchrl.tasks.curated.data import Task
from jaxsearchrl.tasks.curated.reward import Counters, score
from jaxsearchrl.tasks.environment import Score


def curate_top_k(task: Task, retriever: Retriever, k: int, options: TaskConfig) -> Score:
    """The score of one search with the query as it is, all its k best hits curated, and finish.

    Raises ValueError unless 1 <= k <= `options.max_curated`; InfrastructureError as the retriever does.
    """
    if not 1 <= k <= options.max_curated:
        raise ValueError(f"k = {k} must lie in 1..{options.max_curated}, the size of a curated set")
    ids = [hit.document.id for hit in retriever.search(task.query, k)]
    return score(ids, ids, task.facts, options, Counters(turns=1, tool_calls=1, stop_reason="finish"))
