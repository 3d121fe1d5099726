"""One episode of Search-R1: think, search, read what was found, and answer, all by tags.

    turn                       answer of the environment                          over?
    search                     documents, or that nothing was found               no
    answer                     nothing                                            yes, "finish"
    neither, or a tag open     that the action is invalid, and how to act         no
    max_turns turns are over   one more turn without search (`final_turn`)        after it, "turns"

An end-of-text token alone is an invalid action, not an end. The reward looks at the policy's own turns only: nothing
that a document or the environment says can pay. After arXiv:2503.09516 and its public code.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxsearchrl.config import SearchR1Config
from jaxsearchrl.messages import AssistantTurn, MalformedCall, Message, ToolCall, ToolSpec
from jaxsearchrl.search.contract import Hit, Retriever
from jaxsearchrl.tasks.documents import fit_documents
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_r1.prompts import INVALID, NOTHING_FOUND, question_prompt
from jaxsearchrl.tasks.search_r1.reward import score


class SearchR1Environment:
    """Implements `jaxsearchrl.tasks.environment.Environment`; its turns come from `chat.search_r1`.

    format_weight: what a well-formed episode adds to the reward.
    """

    tools: Sequence[ToolSpec] = ()

    def __init__(
        self,
        task: Question,
        retriever: Retriever,
        options: SearchR1Config,
        count_tokens: Callable[[str], int],
        format_weight: float,
    ) -> None:
        self._task, self._retriever, self._options = task, retriever, options
        self._count_tokens, self._format_weight = count_tokens, format_weight
        self._begin()

    def _begin(self) -> None:
        self.stop_reason = ""
        self._answered: str | None = None
        self._turns: list[AssistantTurn] = []
        self._shown: list[str] = []  # what it was shown of the corpus, for the score's "retrieved"
        self._searches = 0
        self._last_step: dict[str, Any] = {"calls": [], "encountered": []}

    def reset(self) -> list[Message]:
        """The question in its prompt; starts the episode anew."""
        self._begin()
        context = ""
        if self._options.play == "rag":
            hits = self._retriever.search(self._task.query, self._options.search_k)
            context = self._documents(hits)[0]
            self._shown.append(context)
        return [Message("user", question_prompt(self._options, self._task.query, context))]

    def step(self, turn: AssistantTurn) -> tuple[list[Message], bool]:
        """Answers a turn. Raises InfrastructureError, with nothing changed, when the retriever does."""
        if self.stop_reason:
            raise RuntimeError(f'the episode is over ("{self.stop_reason}")')
        call = turn.calls[0] if turn.calls else None
        number = len(self._turns) + 1
        searching = False
        hits: Sequence[Hit] = []
        if isinstance(call, ToolCall) and call.name == "search" and number <= self._searching_turns:
            searching, hits = True, self._search(call.arguments["query"])
        self._turns.append(turn)
        self._searches += searching
        if isinstance(call, ToolCall) and call.name == "answer":
            self._answered, self.stop_reason = call.arguments["text"], "finish"
        elif number >= self._searching_turns + self._options.final_turn:
            self.stop_reason = "turns"
        messages: list[Message] = []
        count = 0  # documents that the policy gets to see
        if not self.stop_reason and searching:
            text, count = self._documents(hits)
            self._shown.append(text)
            messages = [Message("tool", text or NOTHING_FOUND, name="search")]
        elif not self.stop_reason:
            messages = [Message("user", INVALID)]
        self._last_step = {
            "calls": [_record(call, hits, searching)] if call else [],
            "encountered": [
                {"id": hit.document.id, "rank": rank, "call": 0} for rank, hit in enumerate(hits[:count], 1)
            ],
        }
        return messages, bool(self.stop_reason)

    def score(self) -> Score:
        """The score of the answer, 0 where there is none."""
        return score(
            self._task,
            self._answered,
            [turn.text for turn in self._turns],
            self._shown,
            sum(not any(isinstance(call, ToolCall) for call in turn.calls) for turn in self._turns),
            self._searches,
            self._options,
            self._format_weight,
        )

    def last_step(self) -> Mapping[str, Any]:
        """`calls`: name, arguments, ok, outcome; `encountered`: the hits shown, with id, rank and call."""
        return self._last_step

    @property
    def _searching_turns(self) -> int:
        return self._options.max_turns if self._options.play == "agent" else 0

    def _search(self, query: str) -> Sequence[Hit]:
        if not any(character.isalnum() for character in query):
            return []
        return self._retriever.search(query, self._options.search_k)

    def _documents(self, hits: Sequence[Hit]) -> tuple[str, int]:
        texts = [f'Doc {i}(Title: "{hit.document.title}") {hit.document.text}' for i, hit in enumerate(hits, start=1)]
        return fit_documents(texts, self._options.max_observation_tokens, self._count_tokens, "\n")


def _record(call: ToolCall | MalformedCall, hits: Sequence[Hit], searching: bool) -> dict[str, Any]:
    if isinstance(call, MalformedCall):
        return {"name": "", "ok": False, "outcome": call.text}
    outcome = "answered" if call.name == "answer" else "found" if hits else "nothing_found" if searching else "too_late"
    return {"name": call.name, "arguments": dict(call.arguments), "ok": outcome != "too_late", "outcome": outcome}
