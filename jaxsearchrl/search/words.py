"""How text becomes index terms: one analyser for documents and queries, and the tantivy schema that uses it.

Whatever characters a query has, it is plain words: no query language, nothing to escape.
"""

import tantivy
from tantivy import Filter, Tokenizer

from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.text import well_formed

# Part of the index's fingerprint: change it whenever `analyser` or `schema` changes.
ANALYSER = "letters and digits, at most 40 bytes, lowercase; title and text as one, without positions"

MAX_QUERY_TERMS = 64

_TOKENIZER = "words"


def analyser(options: IndexOptions) -> tantivy.TextAnalyzer:
    """Splits at whatever is neither letter nor digit; by default "Évolution's" gives ["evolut", "s"]."""
    builder = tantivy.TextAnalyzerBuilder(Tokenizer.simple()).filter(Filter.remove_long(40)).filter(Filter.lowercase())
    if not options.diacritics:
        builder = builder.filter(Filter.ascii_fold())
    if not options.stop_words:
        builder = builder.filter(Filter.stopword("english"))
    if options.stemming:
        builder = builder.filter(Filter.stemmer("english"))
    return builder.build()


def schema() -> tantivy.Schema:
    """Title and text are searched as one; the ordinal leads to the stored document."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name=_TOKENIZER, index_option="freq")
    builder.add_unsigned_field("ordinal", stored=True)
    return builder.build()


def register(index: tantivy.Index, options: IndexOptions) -> None:
    """Gives an index that was made or opened the analyser that its schema names."""
    index.register_tokenizer(_TOKENIZER, analyser(options))


def query_terms(analyse: tantivy.TextAnalyzer, query: str) -> list[str]:
    """The first MAX_QUERY_TERMS distinct terms of a query, in its order; empty when it has no words."""
    return list(dict.fromkeys(analyse.analyze(well_formed(query))))[:MAX_QUERY_TERMS]
