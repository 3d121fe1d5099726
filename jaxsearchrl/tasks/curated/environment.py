"""One episode of the curated-set task: the model searches, curates, and is scored on its curated set.

Calls are carried out in the order in which they were written, so a search may precede the `curate` of the same turn.
Every call gets exactly one reply, but those beyond `MAX_CALLS_PER_TURN` share one: each reply has its wrapping, so only
then has an observation a bound. A step works on a copy of the episode's state, so one that raises changes nothing.
"""

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any

from jaxsearchrl.config import MAX_CALLS_PER_TURN, CuratedConfig
from jaxsearchrl.messages import AssistantTurn, MalformedCall, Message, ToolCall, ToolSpec
from jaxsearchrl.search.contract import BadPattern, Corpus, Hit, Retriever
from jaxsearchrl.tasks.curated import replies
from jaxsearchrl.tasks.curated.data import Task
from jaxsearchrl.tasks.curated.prompts import system_prompt
from jaxsearchrl.tasks.curated.replies import Body, Reply, fault
from jaxsearchrl.tasks.curated.reward import score
from jaxsearchrl.tasks.curated.session import Session
from jaxsearchrl.tasks.curated.tools import ArgumentsError, check_arguments, terse, tool_specs
from jaxsearchrl.tasks.environment import Score


class CuratedEnvironment:
    """Implements `jaxsearchrl.tasks.environment.Environment`.

    Stop reasons: "finish", "malformed", "no_call", "tool_calls", "turns".
    """

    def __init__(
        self,
        task: Task,
        retriever: Retriever,
        corpus: Corpus,
        options: CuratedConfig,
        count_tokens: Callable[[str], int],
    ) -> None:
        self._task, self._retriever, self._corpus = task, retriever, corpus
        self._options, self._count_tokens = options, count_tokens
        self._specs = tool_specs(options)
        self._session = Session()
        self._last_step: dict[str, Any] = {"calls": [], "encountered": [], "curated": []}

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools as the model sees them."""
        return [terse(spec) if self._options.compact_results else spec for spec in self._specs.values()]

    @property
    def stop_reason(self) -> str:
        """Why the episode is over; "" while it runs."""
        return self._session.counters.stop_reason

    def reset(self) -> list[Message]:
        """The system prompt and the query; starts the episode anew."""
        self._session = Session()
        self._last_step = {"calls": [], "encountered": [], "curated": []}
        return [Message("system", system_prompt(self._options)), Message("user", self._task.query)]

    def step(self, turn: AssistantTurn) -> tuple[list[Message], bool]:
        """Answers a turn with at most `max_observation_tokens` tokens of content.

        Raises InfrastructureError, with nothing changed, when the search engine does; RuntimeError after the end.
        """
        if self.stop_reason:
            raise RuntimeError(f'the episode is over ("{self.stop_reason}")')
        session = self._session.copy()
        session.counters.turns += 1
        session.counters.off_form_calls += turn.off_form_calls
        if turn.calls:
            messages, record = self._answer_calls(session, turn)
        else:
            messages, record = self._answer_no_call(session, turn), {"calls": [], "encountered": []}
        counters = session.counters
        if not counters.stop_reason and counters.tool_calls >= self._options.max_tool_calls:
            counters.stop_reason = "tool_calls"
        if not counters.stop_reason and counters.turns >= self._options.max_turns:
            counters.stop_reason = "turns"
        self._session = session
        self._last_step = {**record, "curated": list(session.curated)}
        return messages, bool(counters.stop_reason)

    def score(self) -> Score:
        """The score of the curated set as it stands."""
        session = self._session
        return score(session.curated, session.encountered, self._task.facts, self._options, session.counters)

    def last_step(self) -> dict[str, Any]:
        """What the last step did, ready for JSON.

        `calls`: name, arguments, ok, outcome (a malformed call has no name, and its text in the outcome).
        `encountered`: the hits shown, with id, rank (from 1) and number of the call (from 0).
        `curated`: the set after the step.
        """
        return self._last_step

    def _answer_calls(self, session: Session, turn: AssistantTurn) -> tuple[list[Message], dict[str, Any]]:
        calls = turn.calls
        messages: list[Message] = []
        records: list[dict[str, Any]] = []
        encountered: list[dict[str, Any]] = []
        room = self._options.max_observation_tokens
        if self._options.malformed_call == "end" and any(isinstance(call, MalformedCall) for call in calls):
            session.counters.stop_reason = "malformed"
        answered = calls[: MAX_CALLS_PER_TURN + 1]
        for place, call in enumerate(answered):
            few = place < MAX_CALLS_PER_TURN
            reply = self._answer(session, call) if few else self._refuse(session, calls[place:])
            share = room // (len(answered) - place)
            text, shown = replies.fit(
                reply, self._writer(session, turn if place == 0 else None), share, self._count_tokens
            )
            room -= self._count_tokens(text)
            session.encountered.update(shown)
            encountered += [{"id": i, "rank": rank, "call": place} for rank, i in enumerate(shown, start=1)]
            records.append(_record(call, reply))
            # a name that the model made up goes no further than a quotation in the reply
            name = call.name if isinstance(call, ToolCall) and call.name in self._specs else ""
            messages.append(Message("tool", text, name=name))
        records += [_record(call, reply) for call in calls[len(answered) :]]
        return messages, {"calls": records, "encountered": encountered}

    def _answer_no_call(self, session: Session, turn: AssistantTurn) -> list[Message]:
        if self._options.no_call == "end":
            session.counters.stop_reason = "no_call"
            return []
        session.counters.reminders += 1
        cut = "The turn was cut off at the token limit before any tool call. " if turn.truncated else ""
        words = f"{cut}Every turn must call a tool. Search, curate, or call finish."
        write = self._writer(session, turn)
        room = self._options.max_observation_tokens
        text, _ = replies.fit(fault("no_call", words), write, room, self._count_tokens)
        return [Message("user", text)]

    def _writer(self, session: Session, turn: AssistantTurn | None) -> Callable[[Body], str]:
        """How bodies become text; the first of an observation gets the turn that it answers, and says which that is."""
        write = replies.as_text if self._options.compact_results else replies.as_json
        note: Body = {"turn": f"{session.counters.turns} of {self._options.max_turns}"} if turn else {}
        if turn and turn.tokens_left is not None and self._options.show_tokens_left:
            note["tokens_left"] = turn.tokens_left
        return lambda body: write({**note, **body})

    def _refuse(self, session: Session, calls: Sequence[ToolCall | MalformedCall]) -> Reply:
        """One reply to all calls that are too many."""
        session.counters.malformed_calls += sum(isinstance(call, MalformedCall) for call in calls)
        return fault("not_executed", f"Not executed, nor any call after it: a turn has at most {MAX_CALLS_PER_TURN}.")

    def _answer(self, session: Session, call: ToolCall | MalformedCall) -> Reply:
        counters = session.counters
        if isinstance(call, MalformedCall):
            counters.malformed_calls += 1
        if counters.stop_reason == "finish":
            return fault("not_executed", "Not executed: the search was finished by an earlier call.")
        if counters.stop_reason == "malformed" and isinstance(call, ToolCall):
            return fault("not_executed", "Not executed: another call of the turn could not be read.")
        if counters.tool_calls >= self._options.max_tool_calls:
            return fault("not_executed", f"Not executed: all {self._options.max_tool_calls} tool calls are used up.")
        counters.tool_calls += 1
        if isinstance(call, MalformedCall):
            return fault("malformed_call", call.error)
        if call.name not in self._specs:
            names = ", ".join(self._specs)
            return fault("unknown_tool", f"There is no tool {call.name[:60]!r}. The tools are: {names}.")
        try:
            arguments = check_arguments(self._specs[call.name], call.arguments)
            reply = self._execute(session, call.name, arguments)
        except ArgumentsError as error:
            return fault("invalid_arguments", str(error))
        except BadPattern as error:
            return fault("bad_pattern", str(error))
        session.note_call(call.name, arguments)
        return reply

    def _execute(self, session: Session, name: str, arguments: dict[str, Any]) -> Reply:
        options = self._options
        k = arguments.get("k", options.search_default_k)
        match name:
            case "bm25_search":
                query = arguments["query"]
                return self._found(session, query, [self._search(session, query, k)], k)
            case "fan_out_search":
                queries = arguments["queries"]
                return self._found(session, queries, [self._search(session, query, k) for query in queries], k)
            case "grep_corpus":
                pattern, case = arguments["pattern"], arguments.get("case_sensitive", False)
                hits = self._corpus.grep(pattern, k + len(self._hidden(session)), case_sensitive=case)
                return self._found(session, pattern, [hits], k)
            case "read_document":
                return self._read(session, arguments["document_id"])
            case "curate":
                return session.curate(arguments["document_ids"], options.max_curated)
            case "drop_curated":
                return session.drop(arguments["document_ids"])
            case _:
                return session.finish()

    def _hidden(self, session: Session) -> set[str]:
        """What searches leave out."""
        return session.encountered if self._options.hide_seen else set()

    def _search(self, session: Session, query: str, k: int) -> Sequence[Hit]:
        if not any(character.isalnum() for character in query):
            raise ArgumentsError("The query has no searchable words; write keywords.")
        return self._retriever.search(query, k + len(self._hidden(session)))

    def _found(self, session: Session, query: str | Sequence[str], searches: Sequence[Sequence[Hit]], k: int) -> Reply:
        """One list of the best k new hits of each search: the first of each, then the second of each, …"""
        hidden, merged = self._hidden(session), {}
        new = [[hit for hit in hits if hit.document.id not in hidden][:k] for hits in searches]
        for hit in chain.from_iterable(zip_longest(*new)):
            if hit:
                merged.setdefault(hit.document.id, hit)
        left_out = hidden & {hit.document.id for hits in searches for hit in hits[:k]}
        options = self._options
        return replies.found(query, [*merged.values()], options.snippet_chars, session.search_state, len(left_out))

    def _read(self, session: Session, document_id: str) -> Reply:
        document_id = session.meant(document_id)
        document = self._corpus.read(document_id)
        if document is None:
            return fault("unknown_document", "No document has this id; use an id that a search result has shown.")
        if document_id not in session.encountered:
            return fault("document_not_encountered", "Only a document that a search result has shown can be read.")
        return replies.document(document, self._options.read_max_chars, self._options.snippet_chars)


def _record(call: ToolCall | MalformedCall, reply: Reply) -> dict[str, Any]:
    if isinstance(call, MalformedCall):
        return {"name": "", "arguments": {}, "ok": False, "outcome": f"{reply.outcome}: {call.text}"}
    return {"name": call.name, "arguments": dict(call.arguments), "ok": reply.ok, "outcome": reply.outcome}
