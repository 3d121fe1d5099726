"""Was it the retriever or the policy? What each missed fact was lost to, and whether a policy's queries are any good.

A fact (of a question with answers: the answer) that a scored episode did not hand over was lost in one of these places:

    never retrieved                no search of the episode found a document that supports it
    retrieved but not shown        one did, but the observation had no room for it
    not shown                      either of the two: without the corpus a record cannot tell
    shown but not curated          (of an answer: shown but not answered)
    curated then dropped

The first is the query's or the retriever's fault, the second the observation's budget, the last two the policy's.

Recall@k of the policy's queries is the share of facts with a document among the k best of any of its queries; that of
the raw question is taken among its own k best, and among as many documents as all the queries bring together.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxsearchrl.config import CuratedConfig, GSM8KConfig, SearchR1Config, SearchToolsConfig, TaskConfig
from jaxsearchrl.evaluation.reliability import is_solved
from jaxsearchrl.evaluation.statistics import Estimate, by_task, mean_estimate, paired_difference
from jaxsearchrl.records import CallRecord, RolloutRecord
from jaxsearchrl.rewards.text_match import cover_match, squad_normalised, unicode_normalised
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.index import LocalIndex
from jaxsearchrl.tasks.curated.tools import check_arguments, tool_specs

SearchingConfig = CuratedConfig | SearchR1Config | SearchToolsConfig
Supports = Callable[[Document], bool]

STAGES = (
    "never retrieved",
    "retrieved but not shown",
    "not shown",
    "shown but not curated",
    "shown but not answered",
    "curated then dropped",
)


def missed(records: Sequence[RolloutRecord], options: TaskConfig, index: LocalIndex | None = None) -> dict[str, int]:
    """How many facts of scored episodes were lost in each place, those of STAGES that occur. index: the run's own.

    With it, the episodes' searches are made again. Nothing for a family without searches.
    """
    if isinstance(options, GSM8KConfig):
        return {}
    lost = Counter(place for r in records if not r.failed for place in _lost(r, options, index))
    return {stage: lost[stage] for stage in STAGES if lost[stage]}


@dataclass(frozen=True)
class Recall:
    """Recall@k by task: of the policy's queries together, of the raw question, and of as many of its hits as theirs.

    change: the queries' minus that of the raw question's as many documents.
    """

    k: int
    queries: Estimate
    question: Estimate
    question_as_many: Estimate
    change: Estimate


def recall_at(k: int, records: Sequence[RolloutRecord], options: SearchingConfig, index: LocalIndex) -> Recall | None:
    """Over the scored episodes that searched; None without one. Raises ValueError for k < 1."""
    if k < 1:
        raise ValueError(f"k = {k}: at least one document must be looked at")
    searched = [(record, _queries(record)) for record in records if not record.failed]
    searched = [(record, queries) for record, queries in searched if queries]
    if not searched:
        return None
    theirs, raw, as_many = [], [], []
    for record, queries in searched:
        found = [_documents(index.search(query, k)) for query in queries]
        distinct = {document.id: document for documents in found for document in documents}
        question = _documents(index.search(record.query, max(k, len(distinct))))
        needs = _needs(record, options)
        theirs.append((record.task_id, _share(needs, [*distinct.values()])))
        raw.append((record.task_id, _share(needs, question[:k])))
        as_many.append((record.task_id, _share(needs, question[: len(distinct)])))
    queries, question, many = by_task(theirs), by_task(raw), by_task(as_many)
    return Recall(
        k, mean_estimate(queries), mean_estimate(question), mean_estimate(many), paired_difference(queries, many)
    )


def _lost(record: RolloutRecord, options: SearchingConfig, index: LocalIndex | None) -> Iterator[str]:
    """Where each fact was lost that the episode did not hand over."""
    if isinstance(options, CuratedConfig):
        shown = {hit.id for turn in record.turns for hit in turn.encountered}
        curated = {document_id for turn in record.turns for document_id in turn.curated}
        for ids, need in zip(_gold_ids(record), _needs(record, options), strict=True):
            if ids & {*record.curated}:
                continue
            if ids & curated:
                yield "curated then dropped"
            elif ids & shown:
                yield "shown but not curated"
            else:
                yield _unseen(need, record, options, index)
    elif not is_solved(record):
        if record.score_parts["retrieved"] > 0:
            yield "shown but not answered"
        else:
            yield _unseen(_needs(record, options)[0], record, options, index)


def _unseen(need: Supports, record: RolloutRecord, options: SearchingConfig, index: LocalIndex | None) -> str:
    if index is None:
        return "not shown"
    found = (
        need(document) for turn in record.turns for call in turn.calls for document in _again(call, options, index)
    )
    return "retrieved but not shown" if any(found) else "never retrieved"


def _again(call: CallRecord, options: SearchingConfig, index: LocalIndex) -> Sequence[Document]:
    """What a call found, from the corpus; a call that failed, or that is no search, found nothing."""
    if not call.ok:
        return ()
    if isinstance(options, SearchR1Config | SearchToolsConfig):
        query = call.arguments.get("query") if call.name == "search" else None
        return _documents(index.search(query, options.search_k)) if isinstance(query, str) else ()
    if call.name not in ("bm25_search", "grep_corpus"):
        return ()
    arguments = check_arguments(tool_specs(options)[call.name], call.arguments)
    k = arguments.get("k", options.search_default_k)
    if call.name == "bm25_search":
        return _documents(index.search(arguments["query"], k))
    return _documents(index.grep(arguments["pattern"], k, case_sensitive=arguments.get("case_sensitive", False)))


def _queries(record: RolloutRecord) -> list[str]:
    """The ranked searches of an episode that were carried out."""
    calls = (call for turn in record.turns for call in turn.calls if call.ok and call.name in ("bm25_search", "search"))
    queries = (call.arguments.get("query") for call in calls)
    return [query for query in queries if isinstance(query, str)]


def _needs(record: RolloutRecord, options: SearchingConfig) -> list[Supports]:
    """For each fact (or the one answer), which documents support it."""
    if isinstance(options, CuratedConfig):
        return [lambda document, ids=ids: document.id in ids for ids in _gold_ids(record)]
    answers: Sequence[str] = record.gold["answers"]
    normalise = unicode_normalised if isinstance(options, SearchToolsConfig) else squad_normalised
    return [lambda document: cover_match(f"{document.title} {document.text}", answers, normalise)]


def _gold_ids(record: RolloutRecord) -> list[set[str]]:
    facts: Sequence[Mapping[str, Any]] = record.gold["facts"]
    return [{*fact["chunk_ids"]} for fact in facts]


def _share(needs: Sequence[Supports], documents: Sequence[Document]) -> float:
    return sum(any(map(need, documents)) for need in needs) / len(needs)


def _documents(hits: Sequence[Hit]) -> list[Document]:
    return [hit.document for hit in hits]
