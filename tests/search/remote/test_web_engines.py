"""Searching the web by Zhihu and by Wikipedia: what is asked, keys in turn and retired, quotas, wrong answers."""

import time
from urllib.parse import parse_qs, urlsplit

import pytest

from jaxsearchrl.config import RetrieverConfig
from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote import wikipedia
from jaxsearchrl.search.remote.http import Http
from jaxsearchrl.search.remote.open import open_remote
from jaxsearchrl.search.remote.wikipedia import WikipediaEngine
from jaxsearchrl.search.remote.zhihu import ZhihuEngine

ITEM = {
    "Title": "<em>Owl</em>s",
    "ContentType": "Article",
    "ContentText": " All about <em>owl</em>s. ",
    "Url": "https://o/1",
}
FOUND = {"Code": 0, "Message": "success", "Data": {"HasMore": False, "Items": [ITEM, {"Url": "https://o/2"}]}}


def asked(server, number=-1):
    return {name: values[0] for name, values in parse_qs(urlsplit(server.requests[number].path).query).items()}


def keys(server):
    return [request.headers["Authorization"].removeprefix("Bearer ") for request in server.requests]


def quota(left):
    return {"Code": 0, "Data": [{"APIID": "hot_list"}, {"APIID": "global_search", "RemainingQuota": left}]}


@pytest.fixture
def zhihu(server, counters):
    server.url = server.url.replace("/retrieve", "/api/v1/content/global_search")
    return lambda *keys: ZhihuEngine(Http(5, 2, counters), server.url, keys)


def test_zhihu(zhihu, server, answer):
    server.answers = [answer.ok(FOUND)]
    assert zhihu("a").search("owls", 3) == [
        Hit(Document("https://o/1", "Owls", "All about owls."), 1.0, ""),
        Hit(Document("https://o/2", "", ""), 0.5, ""),
    ]
    assert asked(server) == {"Query": "owls", "Count": "3", "SearchDB": "all"}
    assert abs(int(server.requests[0].headers["X-Request-Timestamp"]) - time.time()) < 100


def test_keys_take_turns(zhihu, server, answer):
    server.answers = [answer.ok(FOUND)]
    engine = zhihu("a", "b", "a", "c")
    for _ in range(5):
        engine.search("owls", 3)
    assert keys(server) == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("refused", ["429", 30001, 30002])
def test_a_key_that_is_refused_is_not_used_again(zhihu, server, answer, pauses, refused):
    bad = answer.raw(b"", 429, Retry_After="9") if refused == "429" else answer.ok({"Code": refused})
    server.answers = [bad, answer.ok(FOUND)]
    engine = zhihu("a", "b")
    for _ in range(3):
        assert len(engine.search("owls", 3)) == 2
    assert (keys(server), pauses) == (["a", "b", "b", "b"], [])
    server.answers = [bad]
    with pytest.raises(InfrastructureError, match="all keys of ZHIHU_SEARCH_KEYS are used up"):
        engine.search("owls", 3)
    with pytest.raises(InfrastructureError, match="used up"):
        engine.search("owls", 3)
    assert len(server.requests) == 5


def test_zhihu_fails_as_others_do(zhihu, server, answer, pauses):
    server.answers = [answer.raw(b"", 500)]
    with pytest.raises(InfrastructureError, match="status 500"):
        zhihu("a").search("owls", 3)
    assert len(server.requests) == 2
    for value, says in [
        ({"Code": 20001, "Message": "who are you"}, "Code 20001, 'who are you'"),
        ({"Code": 0}, "has no 'Data'"),
        ({"Data": {"Items": [ITEM] * 4}}, "has 4 items, where at most 3"),
        ({"Data": {"Items": [{"Title": "x"}]}}, "has no 'Url'"),
        ({"Code": "x"}, "Code: a number is wanted"),
    ]:
        server.answers = [answer.ok(value)]
        with pytest.raises(InfrastructureError, match=says):
            zhihu("a").search("owls", 3)


def test_the_quota_is_asked_for_before_a_run(zhihu, server, answer, counters, monkeypatch):
    options = RetrieverConfig(kind="zhihu", url=server.url, tries=1)
    monkeypatch.delenv("ZHIHU_SEARCH_KEYS", raising=False)
    with pytest.raises(UserError, match="needs keys in the environment variable ZHIHU_SEARCH_KEYS"):
        open_remote(options, counters)
    monkeypatch.setenv("ZHIHU_SEARCH_KEYS", "a, b\nc")
    server.answers = [answer.ok(quota(0)), answer.ok(quota(7)), answer.ok(quota(7)), answer.ok(FOUND)]
    retriever = open_remote(options, counters)
    assert [request.path for request in server.requests] == ["/api/v1/quota"] * 3
    for _ in range(2):
        retriever.search("owls", 3)
    assert {*keys(server)[3:]} == {"b", "c"}
    server.answers = [answer.ok(quota(0))]
    with pytest.raises(UserError, match="used up"):
        open_remote(options, counters)
    server.answers = [answer.ok({"Code": 20001, "Message": "no"})]
    with pytest.raises(UserError, match="Code 20001"):
        open_remote(options, counters)


PAGES = [
    {"pageid": 9, "ns": 0, "title": "Barn owl", "index": 2},
    {"pageid": 7, "ns": 0, "title": "Owl", "index": 1, "extract": "Owls are birds."},
]


@pytest.fixture
def wiki(server, counters, monkeypatch):
    monkeypatch.setattr(wikipedia, "SPACING", 0.05)
    return WikipediaEngine(Http(5, 1, counters), server.url)


def test_wikipedia(wiki, server, answer):
    """Pages come in any order, with the rank beside; one may have no text."""
    server.answers = [answer.ok({"batchcomplete": True, "query": {"pages": PAGES}})]
    assert wiki.search("owls", 3) == [
        Hit(Document("7", "Owl", "Owls are birds."), 1.0, ""),
        Hit(Document("9", "Barn owl", ""), 0.5, ""),
    ]
    assert (asked(server)["gsrsearch"], asked(server)["gsrlimit"]) == ("owls", "3")
    wiki.search("owls", 100)
    assert asked(server)["gsrlimit"] == "20"


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ('insource:/a.*b/ -owl "NOT" AND Éire', "insource a b owl not and éire"),
        ("four " * 100, ("four " * 60).strip()),
        ("x" * 400, "x" * 300),
    ],
)
def test_wikipedia_is_asked_for_plain_words(wiki, server, answer, query, sent):
    server.answers = [answer.ok({"batchcomplete": True})]
    assert wiki.search(query, 3) == []
    assert asked(server)["gsrsearch"] == sent


def test_wikipedia_answers_wrongly(wiki, server, answer):
    for value, says in [
        ({"error": {"code": "maxlag", "info": "x"}}, "error 'maxlag'"),
        ({"query": {}}, "has no 'pages'"),
        ({"query": {"pages": PAGES * 2}}, "has 4 items, where at most 3"),
        ({"query": {"pages": [{"pageid": 1, "title": "x"}]}}, "has no 'index'"),
        ([], "an object is wanted"),
    ]:
        server.answers = [answer.ok(value)]
        with pytest.raises(InfrastructureError, match=says):
            wiki.search("owls", 3)


def test_wikipedia_is_not_asked_too_often(wiki, server, answer):
    server.answers = [answer.ok({})]
    started = time.monotonic()
    for _ in range(4):
        wiki.search("owls", 3)
    assert time.monotonic() - started >= 3 * 0.05
