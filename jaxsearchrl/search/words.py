"""How text becomes index terms: one analyser for documents and queries, and the tantivy schema that uses it.

Whatever characters a query has, it is plain words: no query language, nothing to escape.
"""

import tantivy
from tantivy import Filter, Occur, Query, Tokenizer

from jaxsearchrl.text import well_formed

# Part of the index's fingerprint: change it whenever `analyser` or `schema` changes.
ANALYSER = "simple, at most 40 bytes, lowercase, ascii folding, English stemmer; title and text without positions"

MAX_QUERY_TERMS = 64
TITLE_BOOST = 2.0

_TOKENIZER = "words"


def analyser() -> tantivy.TextAnalyzer:
    """Splits at whatever is neither letter nor digit; "Évolution's" gives ["evolut", "s"]."""
    return (
        tantivy.TextAnalyzerBuilder(Tokenizer.simple())
        .filter(Filter.remove_long(40))
        .filter(Filter.lowercase())
        .filter(Filter.ascii_fold())
        .filter(Filter.stemmer("english"))
        .build()
    )


def schema() -> tantivy.Schema:
    """Title and text are searched; the ordinal leads to the stored document."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("title", tokenizer_name=_TOKENIZER, index_option="freq")
    builder.add_text_field("text", tokenizer_name=_TOKENIZER, index_option="freq")
    builder.add_unsigned_field("ordinal", stored=True)
    return builder.build()


def register(index: tantivy.Index) -> None:
    """Gives an index that was made or opened the analyser that its schema names."""
    index.register_tokenizer(_TOKENIZER, analyser())


def query_terms(analyse: tantivy.TextAnalyzer, query: str) -> list[str]:
    """The first MAX_QUERY_TERMS distinct terms of a query, in its order; empty when it has no words."""
    return list(dict.fromkeys(analyse.analyze(well_formed(query))))[:MAX_QUERY_TERMS]


def any_of(index_schema: tantivy.Schema, terms: list[str]) -> Query:
    """Documents with any of the terms, scored by the sum of BM25 over text and TITLE_BOOST times that over title."""
    clauses: list[tuple[Occur, Query]] = []
    for term in terms:
        in_title = Query.term_query(index_schema, "title", term, "freq")
        clauses.append((Occur.Should, Query.boost_query(in_title, TITLE_BOOST)))
        clauses.append((Occur.Should, Query.term_query(index_schema, "text", term, "freq")))
    return Query.boolean_query(clauses)
