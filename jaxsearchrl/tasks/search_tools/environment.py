"""One episode of Search-R1 by tool calls: a `search` tool, and a last line that reads "Answer: ...".

A turn that makes one good call, within both budgets, is answered with documents. Any other turn is the last one: there
is no second try, and what its text says is what counts, also beside a call that could not be carried out. After the
experiment 03-search-r1 of llm-agent-rl-lab.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxsearchrl.config import SearchToolsConfig
from jaxsearchrl.messages import AssistantTurn, MalformedCall, Message, ToolCall, ToolSpec
from jaxsearchrl.search.contract import Hit, Retriever
from jaxsearchrl.tasks.documents import fit_documents
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_tools.prompts import system_prompt
from jaxsearchrl.tasks.search_tools.reward import score

NOTHING_FOUND = "Search returned no results."

SEARCH = ToolSpec(
    "search",
    "Searches a collection of documents and returns the best ones. Use a short query of key words.",
    {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)


class SearchToolsEnvironment:
    """Implements `jaxsearchrl.tasks.environment.Environment`.

    Stop reasons: "finish" (a turn without a call), "invalid", "tool_calls", "turns".
    """

    def __init__(
        self,
        task: Question,
        retriever: Retriever,
        options: SearchToolsConfig,
        count_tokens: Callable[[str], int],
    ) -> None:
        self._task, self._retriever, self._options, self._count_tokens = task, retriever, options, count_tokens
        self.tools: Sequence[ToolSpec] = (SEARCH,) if options.play == "agent" else ()
        self._begin()

    def _begin(self) -> None:
        self.stop_reason = ""
        self._turns: list[AssistantTurn] = []
        self._shown: list[str] = []
        self._searches = 0
        self._last_step: dict[str, Any] = {"calls": [], "encountered": []}

    def reset(self) -> list[Message]:
        """The rules and the question; starts the episode anew."""
        self._begin()
        question = self._task.query
        if self._options.play == "rag":
            documents, _ = self._documents(self._retriever.search(question, self._options.search_k))
            self._shown.append(documents)
            question = f"{documents}\n\nQuestion: {question}"
        return [Message("system", system_prompt(self._options)), Message("user", question)]

    def step(self, turn: AssistantTurn) -> tuple[list[Message], bool]:
        """Answers a turn. Raises InfrastructureError, with nothing changed, when the retriever does."""
        if self.stop_reason:
            raise RuntimeError(f'the episode is over ("{self.stop_reason}")')
        reason = self._ending(turn)
        if reason:
            self._turns.append(turn)
            self.stop_reason = reason
            self._last_step = {"calls": [_record(call, False, reason) for call in turn.calls], "encountered": []}
            return [], True
        call = turn.calls[0]
        assert isinstance(call, ToolCall)
        hits = self._retriever.search(call.arguments["query"], self._options.search_k)
        text, count = self._documents(hits)
        self._turns.append(turn)
        self._searches += 1
        self._shown.append(text)
        self._last_step = {
            "calls": [_record(call, True, "found" if hits else "nothing_found")],
            "encountered": [
                {"id": hit.document.id, "rank": rank, "call": 0} for rank, hit in enumerate(hits[:count], 1)
            ],
        }
        return [Message("tool", text or NOTHING_FOUND, name="search")], False

    def score(self) -> Score:
        """The score of the last turn's answer line; `invalid_reward` without exactly one."""
        return score(self._task, self._turns, self._shown, self.stop_reason, self._searches, self._options)

    def last_step(self) -> Mapping[str, Any]:
        """`calls`: name, arguments, ok, outcome; `encountered`: the hits shown, with id, rank and call."""
        return self._last_step

    def _ending(self, turn: AssistantTurn) -> str:
        """Why the episode ends with this turn; "" when its call is to be carried out."""
        if not turn.calls:
            return "finish"
        first, *others = turn.calls
        if others or turn.text_after_call or not _is_search(first) or not self.tools:
            return "invalid"
        if self._searches >= self._options.max_searches:
            return "tool_calls"
        return "turns" if len(self._turns) + 1 >= self._options.max_turns else ""

    def _documents(self, hits: Sequence[Hit]) -> tuple[str, int]:
        chars = self._options.document_chars
        texts = [
            f"[{i}] Title: {hit.document.title}\n    Content: {hit.document.text[:chars]}"
            for i, hit in enumerate(hits, 1)
        ]
        return fit_documents(texts, self._options.max_observation_tokens, self._count_tokens, "\n\n")


def _is_search(call: ToolCall | MalformedCall) -> bool:
    """One argument, a query that has a word and no tag."""
    if isinstance(call, MalformedCall) or call.name != SEARCH.name or [*call.arguments] != ["query"]:
        return False
    query = call.arguments["query"]
    return isinstance(query, str) and any(c.isalnum() for c in query) and not {"<", ">"} & {*query}


def _record(call: ToolCall | MalformedCall, ok: bool, outcome: str) -> dict[str, Any]:
    if isinstance(call, MalformedCall):
        return {"name": "", "ok": False, "outcome": call.text}
    return {"name": call.name, "arguments": dict(call.arguments), "ok": ok, "outcome": outcome}
