"""What engines ask, how they read an answer, and that a wrong answer is a failure that says what is wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote.answers import Part
from jaxsearchrl.search.remote.elasticsearch import ElasticsearchEngine
from jaxsearchrl.search.remote.http import Http
from jaxsearchrl.search.remote.search_r1 import SearchR1Engine
from jaxsearchrl.search.remote.wikipedia import WikipediaEngine
from jaxsearchrl.search.remote.zhihu import ZhihuEngine

FIELDS = {"title_field": "title", "text_field": "body"}


@pytest.fixture
def search_r1(server, counters):
    return SearchR1Engine(Http(5, 1, counters), server.url, "letmein")


@pytest.fixture
def elasticsearch(server, counters):
    return ElasticsearchEngine(Http(5, 1, counters), server.url, **FIELDS, key="letmein")


def rows(*documents):
    """An answer of Search-R1's server to one query."""
    return {"result": [[{"document": document, "score": 2 - n} for n, document in enumerate(documents)]]}


def hits(*sources, **more):
    """An answer of Elasticsearch."""
    found = [{"_index": "i", "_id": f"d{n}", "_score": 1.5 - n, "_source": s} for n, s in enumerate(sources)]
    shards = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
    return {"took": 1, "timed_out": False, "_shards": shards, "hits": {"max_score": 1.5, "hits": found}, **more}


def test_search_r1_with_rows_of_the_corpus(search_r1, server, answer):
    """Dense retrieval, and BM25 without stored documents."""
    server.answers = [
        answer.ok(rows({"id": "7", "contents": '"Owl"\nOwls\nfly.'}, {"id": "8", "contents": "So\nit is"}))
    ]
    assert search_r1.search("owls é", 3) == [
        Hit(Document("7", "Owl", "Owls\nfly."), 2.0, ""),
        Hit(Document("8", "", "So\nit is"), 1.0, ""),
    ]
    assert server.asked() == {"queries": ["owls é"], "topk": 3, "return_scores": True}
    assert server.requests[0].headers["Authorization"] == "Bearer letmein"


def test_search_r1_with_stored_documents(search_r1, server, answer):
    """BM25 as published: the title is given without its quotes, and there is no id."""
    document = {"title": "Owl", "text": "Owls fly.", "contents": '"Owl"\nOwls fly.'}
    server.answers = [answer.ok(rows(document, {**document, "id": 9}))]
    named, numbered = search_r1.search("owls", 3)
    assert named.document == Document('"Owl"', "Owl", "Owls fly.")
    assert numbered.document.id == "9"


def test_search_r1_finds_nothing(search_r1, server, answer):
    server.answers = [answer.ok({"result": [[]]})]
    assert search_r1.search("zzz", 3) == []


ROW = {"document": {"id": "7", "contents": "x"}, "score": 1.0}
WRONG_ROWS = {
    "no result": ({}, "retrieve: has no 'result'"),
    "no list at all": ({"result": []}, "result: 0 lists for 1 query"),
    "lists for two queries": ({"result": [[], []]}, "result: has 2 items, where at most 1"),
    "too many documents": ({"result": [[ROW] * 3]}, r"result\[0\]: has 3 items, where at most 2 were asked for"),
    "a list": ([], "retrieve: an object is wanted, found a list"),
    "null": (None, "an object is wanted, found null"),
    "text": ({"result": "x"}, "result: a list is wanted, found a string"),
    "no score": ({"result": [[{"document": ROW["document"]}]]}, r"result\[0\]\[0\]: has no 'score'"),
    "documents alone": ({"result": [[ROW["document"]]]}, "has no 'document'"),
    "a score of text": ({"result": [[{**ROW, "score": "1"}]]}, "score: a number is wanted, found a string"),
    "a score of true": ({"result": [[{**ROW, "score": True}]]}, "score: a number is wanted, found true or false"),
    "a huge score": ({"result": [[{**ROW, "score": 10**400}]]}, "score: a finite number is wanted"),
    "a document of text": ({"result": [[{**ROW, "document": "x"}]]}, "document: an object is wanted, found a string"),
    "no contents": ({"result": [[{**ROW, "document": {"id": "7"}}]]}, "document: has no 'contents'"),
    "an empty id": ({"result": [[{**ROW, "document": {"id": "", "contents": "x"}}]]}, "id: an id of 0 characters"),
    "a long id": ({"result": [[{**ROW, "document": {"id": "x" * 9999, "contents": ""}}]]}, "id of 9999 characters"),
    "an id of true": ({"result": [[{**ROW, "document": {"id": True, "contents": "x"}}]]}, "id: a string is wanted"),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_search_r1_answers_wrongly(search_r1, server, answer, name):
    value, says = WRONG_ROWS[name]
    server.answers = [answer.ok(value)]
    with pytest.raises(InfrastructureError, match=says) as caught:
        search_r1.search("owls", 2)
    assert str(caught.value).startswith(f"POST {server.url}")


def test_elasticsearch(elasticsearch, server, answer):
    server.answers = [answer.ok(hits({"title": "Owl", "body": "Owls fly."}, {"body": "So \ud800"}))]
    assert elasticsearch.search('owls "AND" (x', 2) == [
        Hit(Document("d0", "Owl", "Owls fly."), 1.5, ""),
        Hit(Document("d1", "", "So \ufffd"), 0.5, ""),
    ]
    assert server.asked()["size"] == 2
    matches = [clause["match"] for clause in server.asked()["query"]["bool"]["should"]]
    assert [(field, match["query"]) for clause in matches for field, match in clause.items()] == [
        ("title", 'owls "AND" (x'),
        ("body", 'owls "AND" (x'),
    ]
    assert server.requests[0].path == "/retrieve?allow_partial_search_results=false"
    assert server.requests[0].headers["Authorization"] == "ApiKey letmein"


def test_quickwit(server, answer, counters):
    """It gives neither ids nor scores, but what it sorted by; so ids come from a field."""
    found = {"_index": "wiki", "_id": "", "_score": None, "_source": {"id": 7, "title": "Owl", "body": "x"}}
    server.answers = [answer.ok(hits() | {"hits": {"hits": [{**found, "sort": [3.5]}]}})]
    http = Http(5, 1, counters)
    engine = ElasticsearchEngine(http, server.url, **FIELDS, id_field="id")
    assert engine.search("owls", 2) == [Hit(Document("7", "Owl", "x"), 3.5, "")]
    assert server.asked()["sort"] == [{"_score": {"order": "desc"}}]  # else it would sort by nothing
    with pytest.raises(InfrastructureError, match="_id: an id of 0 characters"):
        ElasticsearchEngine(http, server.url, **FIELDS).search("owls", 2)


WRONG_HITS = {
    "in part": (hits(timed_out=True), "timed_out, the hits are not complete"),
    "without a shard": (hits(_shards={"total": 2, "failed": 1}), "1 shards failed, the hits are not complete"),
    "an error": ({"error": {"reason": "x"}, "status": 400}, "has no 'hits'"),
    "too many hits": (hits(*[{"body": "x"}] * 3), "hits hits: has 3 items, where at most 2"),
    "another mapping": (hits({"text": "x"}), r"hits\[0\] _source: has no 'body'"),
    "a text of lists": (hits({"body": ["x"]}), "body: a string is wanted, found a list"),
    "no source": ({"hits": {"hits": [{"_id": "1", "_score": 1}]}}, "has no '_source'"),
}


@pytest.mark.parametrize("name", WRONG_HITS)
def test_elasticsearch_answers_wrongly(elasticsearch, server, answer, name):
    value, says = WRONG_HITS[name]
    server.answers = [answer.ok(value)]
    with pytest.raises(InfrastructureError, match=says):
        elasticsearch.search("owls", 2)


class Answering:
    """In place of `Http`: gives one value."""

    def __init__(self, value):
        self.value = value

    def json(self, *_, **__):
        return Part(self.value, "POST http://host/path")


class Hasty(WikipediaEngine):
    def _wait(self):
        pass


NAMES = (
    "result document score id contents title text hits _id _source _score body sort Code Data Items Url Title "
    "ContentText query pages index pageid extract error code"
)
KEYS = st.sampled_from(NAMES.split())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=8,
)


@given(VALUES)
def test_whatever_is_answered_becomes_hits_or_a_failure(value):
    http = Answering(value)
    engines = (
        SearchR1Engine(http, "u"),
        ElasticsearchEngine(http, "u", **FIELDS),
        ZhihuEngine(http, "u", ("key",)),
        Hasty(http, "u"),
    )
    for engine in engines:
        try:
            found = engine.search("owls", 2)
        except InfrastructureError:
            continue
        assert len(found) <= 2
        json.dumps([hit.score for hit in found], allow_nan=False)
        "".join(hit.document.id + hit.document.title + hit.document.text for hit in found).encode()
