import json
import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import tantivy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.search import build, ranking, words
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.index import LocalIndex, open_or_build
from jaxsearchrl.search.options import IndexOptions


def _ids(hits):
    return [hit.document.id for hit in hits]


def _bm25(documents, query, k1=1.2, b=0.75):
    """BM25 of each document (a list of terms), with the idf that is always positive."""
    count = len(documents)
    mean = sum(map(len, documents)) / count
    scores = []
    for document in documents:
        occurrences = Counter(document)
        score = 0.0
        for term in query:
            having = sum(term in other for other in documents)
            idf = math.log(1 + (count - having + 0.5) / (having + 0.5))
            tf = occurrences[term]
            score += idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(document) / mean))
        scores.append(score)
    return scores


def test_scores_are_those_of_bm25_written_by_hand(make_index):
    source = random.Random(3)
    vocabulary = ["oak", "elm", "fir", "ash", "yew", "box", "bay", "fig"]
    # Up to 40 terms, title and text together, tantivy keeps lengths exactly.
    texts = [source.choices(vocabulary, weights=range(1, 9), k=source.randint(1, 36)) for _ in range(30)]
    titles = [source.choices(vocabulary, k=source.randint(1, 4)) for _ in range(30)]
    index = make_index([(str(n), " ".join(titles[n]), " ".join(texts[n])) for n in range(30)])
    query = ["oak", "fig", "bay"]
    wanted = _bm25([title + text for title, text in zip(titles, texts, strict=True)], query)
    hits = index.search(" ".join(query), 30)
    assert [hit.score for hit in hits] == pytest.approx([wanted[int(hit.document.id)] for hit in hits], abs=2e-4)
    assert len(hits) == sum(score > 0 for score in wanted)
    assert wanted[int(hits[0].document.id)] == max(wanted)


def test_a_word_in_half_of_the_documents_still_ranks_and_scores_above_zero(make_index):
    hits = make_index(["windy day", "calm day", "windy night", "calm night"]).search("windy", 4)
    assert _ids(hits) == ["0", "2"]
    assert all(hit.score > 0 for hit in hits)


def test_a_word_in_every_document_scores_above_zero(make_index):
    assert all(hit.score > 0 for hit in make_index(["calm a", "calm b"]).search("calm", 2))


def test_words_match_by_stem_whatever_case_and_accent(make_index):
    index = make_index(["He was running to the Café", "nothing here"])
    for query in ["run", "RUNS", "cafe", "CAFÉS"]:
        assert _ids(index.search(query, 5)) == ["0"], query


def test_a_title_counts_as_often_as_the_options_say(make_index, tmp_path):
    rows = [("body", "moon", "the owl"), ("title", "the owl", "moon")]
    body, title = make_index(rows).search("owl", 2)
    assert (body.document.id, body.score) == ("body", title.score)
    title, body = make_index(rows, index_dir=tmp_path / "twice", options=IndexOptions(title_weight=2)).search("owl", 2)
    assert title.document.id == "title"
    assert title.score > body.score


def test_equal_scores_stand_in_corpus_order_for_every_k(make_index):
    index = make_index(["filler words", *["same text"] * 50, "same text same text"])
    everything = _ids(index.search("same", 52))
    assert everything == ["51", *[str(n) for n in range(1, 51)]]
    for k in (1, 2, 3, 10, 49, 50):
        assert _ids(index.search("same", k)) == everything[:k]


@pytest.fixture(scope="module")
def frequent_words(tmp_path_factory):
    """300 documents of a few words; "a" is in most of them, "h" in few."""
    path, source = tmp_path_factory.mktemp("frequent") / "c.jsonl", random.Random(1)
    texts = [source.choices("abcdefgh", [300, 200, 100, 50, 20, 5, 2, 1], k=source.randint(1, 12)) for _ in range(300)]
    rows = [{"id": str(n), "title": text[-1], "text": " ".join(text)} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_or_build(path)


@settings(deadline=None, max_examples=500)
@given(
    st.lists(st.sampled_from("abcdefghi"), min_size=1, max_size=8),
    st.integers(1, 60),
    st.floats(0, 1),
    st.sampled_from([0, 4]),
)
def test_documents_that_are_passed_over_are_none_of_the_best(frequent_words, query, k, little, seek):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_LITTLE", little)
        patch.setattr(ranking, "_SEEK", seek)
        found = frequent_words.search(" ".join(query), k)
        patch.setattr(ranking, "_needed", lambda clauses, left, score: len(clauses))
        assert frequent_words.search(" ".join(query), k) == found


def test_how_the_index_lies_on_disk_changes_no_answer(make_corpus, monkeypatch):
    source = random.Random(5)
    texts = [" ".join(source.choices("abcdef", k=3)) for _ in range(300)]
    rows = [(str(n), text[0], text) for n, text in enumerate(texts)]

    def write_in_pieces(folder, store, options):
        """Three segments, each with every third document, from the last to the first."""
        (folder / "00000").mkdir(parents=True)
        index = tantivy.Index(words.schema(), path=str(folder / "00000"))
        words.register(index, options)
        writer = index.writer(num_threads=1)
        for piece in range(3):
            for ordinal in reversed(range(piece, len(store), 3)):
                document = tantivy.Document(text=[store.document(ordinal).title, store.document(ordinal).text])
                document.add_unsigned("ordinal", ordinal)
                writer.add_document(document)
            writer.commit()
        writer.wait_merging_threads()

    straight = open_or_build(make_corpus(rows))
    monkeypatch.setattr(build, "write_terms", write_in_pieces)
    pieces = open_or_build(make_corpus(rows, "again.jsonl"))
    assert pieces._searcher.num_segments == 3
    for query in ["a", "b c", "a b c d e f"]:
        for k in (1, 7, 50, 300):
            assert pieces.search(query, k) == straight.search(query, k)


def test_k_is_held_within_one_and_the_size(make_index):
    index = make_index(["owl one", "owl two"])
    assert len(index.search("owl", 10**9)) == 2
    assert len(index.search("owl", 0)) == len(index.search("owl", -5)) == 1
    assert len(index.grep("owl", 10**9)) == 2
    assert len(index.grep("owl", 0)) == 1


def test_repeated_words_do_not_change_the_scores(make_index):
    index = make_index(["owl mail", "owl owl"])
    assert index.search("owl mail", 2) == index.search("owl Owls mail owl owl", 2)


@pytest.mark.parametrize("query", ["", "   ", "!!!", "\0", "\ud800", "\n\t", '"" () [] {} ~ ^ *', "x" * 100_000])
def test_a_query_without_words_finds_nothing(make_index, query):
    assert make_index(["owl", "mail"]).search(query, 5) == []


def test_operators_and_quotes_are_plain_words(make_index):
    index = make_index(["AT&T reported revenue in its 10-K of 2019", "an unrelated text", "NOT and OR"])
    assert _ids(index.search('AT&T "10-K" (2019) AND revenue:', 5))[0] == "0"
    assert _ids(index.search("a AND OR NOT (", 5))[0] == "2"
    assert _ids(index.search("-revenue", 5)) == ["0"]
    assert _ids(index.search("nosuchfield:revenue", 5)) == ["0"]


@pytest.fixture(scope="module")
def shared_index(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "c.jsonl"
    path.write_text(
        '{"id":"a","text":"revenue AND profit"}\n{"id":"b","title":"10-K","text":"AT&T"}\n{"id":"c","text":""}'
    )
    return open_or_build(path)


_operators = st.lists(
    st.sampled_from(
        ["AND", "OR", "NOT", '"', "(", ")", ":", "*", "~2", "^3", "+", "-", "[a TO b]", "revenue", "\\", "/"]
    )
)


@given(st.text(st.characters(codec=None, categories=None)) | _operators.map(" ".join) | _operators.map("".join))
@settings(max_examples=200, deadline=None)
def test_no_query_raises(shared_index, query):
    hits = shared_index.search(query, 5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    if "revenue" in query.split():
        assert "a" in _ids(hits)


class _Panicking:
    """A searcher whose searches panic, as tantivy does where its files are damaged."""

    def __init__(self, searcher):
        self._searcher = searcher

    def __getattr__(self, name):
        return getattr(self._searcher, name)

    def search(self, query, **options):
        return self._searcher.search(query, limit=0)  # tantivy asserts that it is not 0


def test_a_panic_of_the_engine_is_a_failure_of_the_infrastructure(make_index, monkeypatch):
    index = make_index(["owl"])
    monkeypatch.setattr(index, "_searcher", _Panicking(index._searcher))
    with pytest.raises(InfrastructureError, match=r"(?s)PanicException.*delete the index to rebuild it"):
        index.search("owl", 1)


def test_who_stops_a_search_is_not_a_failure_of_the_infrastructure(make_index, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    index = make_index(["owl"])
    monkeypatch.setattr(index, "_ranked", stop)
    with pytest.raises(KeyboardInterrupt):
        index.search("owl", 1)


@pytest.mark.parametrize("size", [200_000, 10])
def test_a_very_long_query_is_answered(shared_index, size):
    assert _ids(shared_index.search("revenue " + "x" * size + " word" * size, 5)) == ["a"]
    assert _ids(shared_index.search("revenue " + " ".join(f"w{n}" for n in range(5000)), 5)) == ["a"]


def test_words_beyond_the_cap_are_left_out(shared_index):
    assert shared_index.search(" ".join(f"w{n}" for n in range(64)) + " revenue", 5) == []


def test_a_corpus_of_one_empty_document(make_index):
    index = make_index([("only", "", "")])
    assert index.size == 1
    assert index.search("anything", 3) == []
    assert index.read("only") == Document("only", "", "")
    assert index.grep("x", 3) == []
    assert _ids(index.grep("^\n$", 3)) == ["only"]


def test_documents_come_back_as_they_were(make_index):
    rows = [("007", "A\ntitle", "text\n"), ("a/b c", "", "\n\nNUL \0 😀"), ("é", "t", ""), ("e\u0301", "", "other")]
    index = make_index(rows)
    for row in rows:
        assert index.read(row[0]) == Document(*row)
    for unknown in ["7", "", "A/B C", "\ud800", "x" * 70_000, "007 "]:
        assert index.read(unknown) is None


def test_a_snippet_shows_the_match_and_keeps_its_length(make_index):
    text = "filler words go on " * 100 + "the broomsticks are flying " + "and on they go " * 100
    index = make_index([text], snippet_chars=80)
    hit = index.search("broomstick flies", 1)[0]
    assert "broomsticks are flying" in hit.snippet
    assert len(hit.snippet) <= 80
    assert hit.snippet in text
    without = LocalIndex(index.folder, snippet_chars=0)
    assert without.search("broomstick flies", 1) == [replace(hit, snippet="")]
    assert without.grep("broom", 1) == [replace(hit, score=0.0, snippet="")]


def test_threads_share_an_index_and_get_what_one_thread_gets(make_index):
    source = random.Random(0)
    index = make_index([" ".join(source.choices("abcdefghij", k=30)) for _ in range(200)])
    queries = [" ".join(source.choices("abcdefghij", k=3)) for _ in range(60)]

    def answer(query):
        return index.search(query, 7), index.grep(query.replace(" ", ".*"), 3)

    alone = [answer(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, queries * 3)) == alone * 3


@given(texts=st.lists(st.text(alphabet="ab cé\n", max_size=12), min_size=1, max_size=8), k=st.integers(1, 9))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_fewer_hits_are_the_first_of_more(tmp_path_factory, texts, k):
    path = tmp_path_factory.mktemp("k") / "c.jsonl"
    path.write_text("".join(json.dumps({"id": str(n), "text": t}) + "\n" for n, t in enumerate(texts)))
    index = open_or_build(path)
    assert index.search("a b é", k) == index.search("a b é", 100)[:k]
    assert index.grep("[aé]", k) == index.grep("[aé]", 100)[:k]
