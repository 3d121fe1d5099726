"""The scripted expert: searches each line of the query, curates the top hits and finishes. It never sees the gold."""

from collections.abc import Sequence

from jaxsearchrl.config import MAX_CALLS_PER_TURN
from jaxsearchrl.messages import AssistantTurn, Message, ToolCall
from jaxsearchrl.tasks.curated.replies import top_hit


class RuleAgent:
    """Plays a query whose parts stand on lines of their own; an agent without tokens and without state."""

    def act(self, messages: Sequence[Message]) -> AssistantTurn:
        """The next turn: all searches that one may have, then `curate` (if anything was found) and `finish`."""
        answers = [message.content for message in messages if message.role == "tool" and message.name == "bm25_search"]
        if not answers:
            query = next(message.content for message in messages if message.role == "user")
            parts = [line.strip() for line in query.splitlines() if line.strip()]
            searches = [ToolCall("bm25_search", {"query": part}) for part in parts]
            return AssistantTurn(calls=tuple(searches[:MAX_CALLS_PER_TURN]))
        tops = [top for top in map(top_hit, answers) if top]
        curate = (ToolCall("curate", {"document_ids": list(dict.fromkeys(tops))}),) if tops else ()
        return AssistantTurn(calls=(*curate, ToolCall("finish", {})))
