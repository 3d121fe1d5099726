"""Harness-1's supervised rows (`payload_json`, format ultra_v3) as demonstrations for this harness.

Their agent has tools that this one lacks, and a memory that this one does not keep. So of a row its actions are kept
and no more: what answered them is left behind, and a warm start plays them anew on this corpus.

    theirs                         here
    search_corpus(query)           bm25_search
    fan_out_search(queries)        a bm25_search for each, in one turn
    grep_corpus(pattern)           grep_corpus
    read_document, review_docs     a read_document for each
    curate(add_ids, remove_ids)    curate, drop_curated; `importance` has no counterpart
    verify(doc_ids, claim)         nothing: a judge of claims is not there
    end_search(reasoning)          finish

Their harness fills the curated set by itself after the first search, and evicts by importance. So the final set of the
calls above may differ from the recorded one (`curated_ids`); what it lacks is curated, what it has too much dropped,
before `finish`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxsearchrl.config import MAX_CALLS_PER_TURN
from jaxsearchrl.data.harness1_draw import Traces
from jaxsearchrl.data.harness1_rows import DATA_SET, Query, as_list, family_of, read_facts, text_of
from jaxsearchrl.data.joined_tasks import normalise
from jaxsearchrl.data.question_files import Unusable
from jaxsearchrl.errors import UserError
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.raw_rows import read_rows
from jaxsearchrl.search.contract import BadPattern
from jaxsearchrl.search.grep import compile_pattern
from jaxsearchrl.strict_json import parse
from jaxsearchrl.tasks.curated.data import Fact, Task
from jaxsearchrl.tasks.curated.demonstrations import FINISH, Demonstration
from jaxsearchrl.text import well_formed

FORMAT = "ultra_v3"
_STAGE = "sft"
_BATCH_ROWS = 16  # a payload holds all that an episode was shown
_NEEDED = (("stage",), ("dataset_name",), ("query_id",), ("query",), ("payload_json",))


def read_demonstrations(
    paths: Sequence[Path], queries: Sequence[Query], held_out: Sequence[Query], corpus: Collection[str]
) -> Iterator[tuple[Demonstration | None, Counter[str]]]:
    """For every supervised row its demonstration and what was left out of it, or None and why there is none.

    queries: where the facts of a row without its own are found. held_out: what must not be taught. corpus: the ids that
    can be found.
    Raises UserError naming file and row for what cannot be read.
    """
    facts = {(query.task.id, normalise(query.task.query)): query.task.facts for query in queries}
    traces = Traces(held_out)
    for path in paths:
        for where, row in read_rows(path, _NEEDED, ["answer", "document_ids_json"], batch_rows=_BATCH_ROWS):
            if row["stage"] != _STAGE:
                continue
            lost = Counter[str]()
            try:
                yield _demonstration(row, facts, traces, corpus, lost, where), lost
            except Unusable as reason:
                yield None, Counter([str(reason)])


def _demonstration(
    row: Mapping[str, Any],
    facts: Mapping[tuple[str, str], tuple[Fact, ...]],
    held_out: Traces,
    corpus: Collection[str],
    lost: Counter[str],
    where: str,
) -> Demonstration:
    if row["dataset_name"] != DATA_SET:
        raise Unusable(f"data set {row['dataset_name']}")
    query_id, text = text_of(row, "query_id", where), text_of(row, "query", where)
    payload = _payload(row["payload_json"], f'{where}: "payload_json"')
    if payload.get("format_version") != FORMAT:
        raise Unusable(f"format {payload.get('format_version')}")
    own = row.get("document_ids_json")
    named = read_facts(own, f'{where}: "document_ids_json"') if own else facts.get((query_id, normalise(text)), ())
    if not named:
        raise Unusable("no facts, and no question of this id and text that has some")
    task = Task(query_id, text, named, text_of(row, "answer", where))
    if held_out.shared(Query(task, family_of(query_id))):
        raise Unusable("shares a family, gold or text with a held-out question")
    if not all(any(chunk_id in corpus for chunk_id in fact.chunk_ids) for fact in named):
        raise Unusable("the corpus lacks a fact's chunks")
    turns = _turns(payload, corpus, lost, f'{where}: "payload_json"')
    if not any(isinstance(call, ToolCall) and call.name == "curate" for turn in turns for call in turn.calls):
        raise Unusable("nothing of this corpus curated")
    return Demonstration(task, turns)


def _payload(value: Any, where: str) -> Mapping[str, Any]:
    try:
        payload = parse(value) if isinstance(value, str) else value
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error})") from error
    if not isinstance(payload, Mapping):
        raise UserError(f"{where} must be an object, found {type(payload).__name__}")
    return payload


def _turns(
    payload: Mapping[str, Any], corpus: Collection[str], lost: Counter[str], where: str
) -> tuple[AssistantTurn, ...]:
    """The recorded turns in this harness's tools, and `finish`. What has no counterpart is counted in `lost`."""
    turns: list[AssistantTurn] = []
    curated: dict[str, None] = {}
    before: Any = None
    for number, entry in enumerate(as_list(payload.get("turn_history"), f"{where}, turn_history")):
        if not isinstance(entry, Mapping):
            raise UserError(f"{where}, turn_history: entry {number} must be an object, found {type(entry).__name__}")
        tool, params = entry.get("tool_name"), entry.get("params")
        if tool == "end_search":
            break
        calls = _calls(str(tool), _payload(params or {}, f"{where}, params"), corpus, lost)
        for call in calls:
            if call.name == "curate":
                curated.update(dict.fromkeys(call.arguments["document_ids"]))
            elif call.name == "drop_curated":
                curated = {i: None for i in curated if i not in call.arguments["document_ids"]}
        if not calls:
            continue
        index, reasoning = entry.get("turn_idx"), well_formed(str(entry.get("reasoning") or "")).strip()
        together = turns and index is not None and index == before
        if together and len(turns[-1].calls) + len(calls) <= MAX_CALLS_PER_TURN:
            last = turns.pop()
            reasoning = last.reasoning if reasoning in last.reasoning else f"{last.reasoning}\n{reasoning}".strip()
            calls = [*last.calls, *calls]
        turns.append(AssistantTurn(reasoning=reasoning, calls=tuple(calls)))
        before = index
    recorded = _ids(payload.get("curated_ids"), corpus, lost)
    completed = _set("curate", [i for i in recorded if i not in curated])
    completed += _set("drop_curated", [i for i in curated if i not in recorded])
    if completed:
        lost["curated sets completed before finish"] += 1
        turns.append(AssistantTurn(calls=tuple(completed)))
    return (*turns, FINISH)


def _calls(tool: str, params: Mapping[str, Any], corpus: Collection[str], lost: Counter[str]) -> list[ToolCall]:
    match tool:
        case "search_corpus" | "fan_out_search":
            queries = _texts(params.get("queries") or params.get("query"))
            calls = [ToolCall("bm25_search", {"query": query}) for query in queries if any(map(str.isalnum, query))]
        case "grep_corpus":
            patterns = [pattern for pattern in _texts(params.get("pattern")) if _greps(pattern)]
            calls = [ToolCall("grep_corpus", {"pattern": pattern}) for pattern in patterns]
        case "read_document" | "review_docs":
            given = next(
                (params[key] for key in ("doc_ids", "document_ids", "doc_id", "document_id") if key in params), None
            )
            calls = [ToolCall("read_document", {"document_id": i}) for i in _ids(given, corpus, lost)]
        case "curate":
            lost["importance of curated documents"] += bool(params.get("importance"))
            calls = _set("curate", _ids(params.get("add_ids"), corpus, lost))
            calls += _set("drop_curated", _ids(params.get("remove_ids"), corpus, lost))
        case _:
            lost[f"calls of {tool}"] += 1
            return []
    if not calls:
        lost[f"calls of {tool} without anything that can be done here"] += 1
    if len(calls) > MAX_CALLS_PER_TURN:
        lost[f"calls beyond {MAX_CALLS_PER_TURN} in a turn"] += len(calls) - MAX_CALLS_PER_TURN
    return calls[:MAX_CALLS_PER_TURN]


def _set(name: str, ids: Sequence[str]) -> list[ToolCall]:
    return [ToolCall(name, {"document_ids": list(ids)})] if ids else []


def _ids(value: Any, corpus: Collection[str], lost: Counter[str]) -> list[str]:
    ids = list(dict.fromkeys(_texts(value)))
    lost["ids that the corpus lacks"] += sum(i not in corpus for i in ids)
    return [i for i in ids if i in corpus]


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [well_formed(text).strip() for text in values if isinstance(text, str) and text.strip()]


def _greps(pattern: str) -> bool:
    try:
        compile_pattern(pattern, case_sensitive=False)
    except BadPattern:
        return False
    return True
