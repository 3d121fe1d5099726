"""The best documents for some terms, without scoring all that have one of them (MaxScore: Turtle and Flood, 1995).

A frequent word adds little to a score. Once k documents score more than the frequent words together can add, documents
that have none but these need not be looked at. tantivy's Python package does not do so itself.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import tantivy
from tantivy import Occur, Query

_K1 = 1.2  # tantivy's
_LITTLE = 0.5  # the first guess: documents are not needed for words that can add so little of the greatest score

_SEEK = 4  # what looking for a document costs, of passing over it


@dataclass(frozen=True)
class Clause:
    """A term, which `documents` have. bound: more than it can add to any score."""

    query: Query
    documents: int
    bound: float


def clauses(searcher: tantivy.Searcher, schema: tantivy.Schema, terms: Sequence[str]) -> list[Clause]:
    """One for each term that is somewhere, the rarest first."""
    found = []
    for term in terms:
        if documents := searcher.doc_freq("text", term):
            idf = math.log1p((searcher.num_docs - documents + 0.5) / (documents + 0.5))
            # The fraction in BM25 is below k1 + 1; the rest is for rounding.
            found.append(Clause(Query.term_query(schema, "text", term, "freq"), documents, 1.001 * idf * (_K1 + 1)))
    return sorted(found, key=lambda clause: clause.documents)


def best(searcher: tantivy.Searcher, clauses: Sequence[Clause], k: int) -> list[tuple[float, tantivy.DocAddress]]:
    """The k documents of the highest scores, and all that score as high as the last of them, in any order.

    clauses: the rarest first. A score is the sum over the clauses that match, at least one.
    """
    # left[n]: more than a document can score that has none of the first n clauses.
    left = [*itertools.accumulate((clause.bound for clause in reversed(clauses)), initial=0.0)][::-1]
    needed = _needed(clauses, left, _LITTLE * left[0])
    limit = min(k + 10, searcher.num_docs)  # a few more cost little, asking again costs as much as asking
    while True:
        found = searcher.search(_query(clauses, needed), limit=limit, count=False).hits
        least = found[k - 1][0] if len(found) >= k else 0.0
        if needed < len(clauses) and left[needed] >= least:
            needed = _needed(clauses, left, least)
        elif len(found) < limit or limit == searcher.num_docs or found[-1][0] < least:
            return [hit for hit in found if hit[0] >= least]
        else:  # tantivy cuts ties anywhere
            limit = min(2 * limit, searcher.num_docs)


def _needed(clauses: Sequence[Clause], left: Sequence[float], score: float) -> int:
    """How many clauses until no more than `score` is left; all of them where so many are no less work."""
    needed = next((n for n, most in enumerate(left) if most < score), len(clauses))
    having = [clause.documents for clause in clauses]
    # Each document that has one of them is looked for in every other clause.
    few = sum(having[:needed]) * (1 + _SEEK * (len(clauses) - needed))
    return needed if few < sum(having) else len(clauses)


def _query(clauses: Sequence[Clause], needed: int) -> Query:
    """Documents that have one of the first `needed` clauses, scored by all.

    The sum is taken in the clauses' order whatever is needed, so that its last bit is the same too.
    """
    query = Query.boolean_query([(Occur.Should, clause.query) for clause in clauses[:needed]])
    for clause in clauses[needed:]:
        query = Query.boolean_query([(Occur.Must, query), (Occur.Should, clause.query)])
    return query
