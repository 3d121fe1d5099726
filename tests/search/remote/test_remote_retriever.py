"""An engine elsewhere as a Retriever: what is sent, counted and kept, and the check before a run."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.config import RetrieverConfig
from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote.cache import ResultCache
from jaxsearchrl.search.remote.open import open_remote
from jaxsearchrl.search.remote.retriever import MAX_QUERY_CHARS, RemoteRetriever, plain

ROOT = Path(__file__).parents[3]
HITS = [Hit(Document("7", "Owl", "Owls é\nfly."), 1.5, "")]
ANSWER = {"result": [[{"document": {"id": "7", "contents": '"Owl"\nOwls é\nfly.'}, "score": 1.5}]]}


class Engine:
    """Gives HITS, or raises; `asked` is what it was asked."""

    def __init__(self, fails=False):
        self.fails, self.asked = fails, []

    def search(self, query, k):
        self.asked.append((query, k))
        if self.fails:
            raise InfrastructureError("down")
        return HITS


def open_at(server, counters, **options):
    settings = {"kind": "search_r1", "url": server.url, "timeout": 5.0, "tries": 1, **options}
    return open_remote(RetrieverConfig(**settings), counters)


def test_a_query_is_sent_as_one_plain_line(counters):
    engine = Engine()
    retriever = RemoteRetriever(engine, "", counters)
    assert retriever.search(" owls\n\0\tfly\ud800? ", 0) == HITS
    assert engine.asked == [("owls fly\ufffd?", 1)]
    for nothing in ("", "  ", "!!! ??", "\ud800", "\0"):
        assert retriever.search(nothing, 3) == []
    assert len(engine.asked) == 1


@given(st.text(max_size=50) | st.text(st.characters(codec="utf-8"), max_size=50).map(lambda text: text * 200))
def test_plain_queries_are_short_valid_and_keep_their_words(query):
    text = plain(query)
    assert len(text) <= MAX_QUERY_CHARS
    text.encode()
    assert all(character.isprintable() for character in text)
    assert plain(text) == text
    if not any(character.isalnum() for character in query):
        assert text == ""


def test_a_long_query_is_cut_between_words():
    assert plain("four " * 1000) == " ".join(["four"] * 400)
    assert plain("x" * 5000) == "x" * 2000


def test_counts_are_of_the_step_and_not_of_the_run(counters):
    good, bad = RemoteRetriever(Engine(), "", counters), RemoteRetriever(Engine(fails=True), "", counters)
    assert counters.take() == {}
    for _ in range(3):
        good.search("owls", 1)
    with pytest.raises(InfrastructureError):
        bad.search("owls", 1)
    counters.add("retries")
    first = counters.take()
    assert (first["search/success"], first["search/errors"], first["search/success_rate"]) == (3, 1, 0.75)
    assert (first["search/retries"], first["search/rate_limited"], first["search/cached"]) == (1, 0, 0)
    assert 0 <= first["search/latency"] <= first["search/latency_p95"] < 1
    good.search("owls", 1)
    assert (counters.take()["search/success_rate"], counters.take()) == (1, {})


def test_counts_of_many_threads_are_all_there(counters):
    retriever = RemoteRetriever(Engine(), "", counters)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: retriever.search("owls", 1), range(2000)))
    assert counters.take()["search/success"] == 2000


def test_what_is_in_the_cache_needs_no_network(server, answer, counters, tmp_path):
    path = str(tmp_path / "new" / "searches.sqlite")
    server.answers = [answer.ok(ANSWER)]
    retriever = open_at(server, counters, cache_file=path)
    assert retriever.search("owls", 3) == HITS
    assert retriever.search(" owls ", 3) == HITS
    assert [json.loads(request.body)["queries"] for request in server.requests] == [["water"], ["owls"]]
    metrics = counters.take()
    assert (metrics["search/success"], metrics["search/cached"]) == (1, 1)
    server.answers = [answer.raw(b"", 404)]
    again = open_at(server, counters, cache_file=path)  # it only warns: a repeated run needs no more
    assert again.search("owls", 3) == HITS
    for other in ("owls", 2), ("owl", 3):
        with pytest.raises(InfrastructureError, match="404"):
            again.search(*other)


def test_a_failure_is_not_kept(counters, tmp_path):
    engine = Engine(fails=True)
    retriever = RemoteRetriever(engine, "", counters, ResultCache(tmp_path / "c", ("e",)))
    with pytest.raises(InfrastructureError):
        retriever.search("owls", 1)
    engine.fails = False
    assert retriever.search("owls", 1) == HITS


def test_engines_do_not_share_results(tmp_path):
    ours, theirs = (ResultCache(tmp_path / "c", (name,)) for name in ("ours", "theirs"))
    ours.put("owls", 1, HITS)
    assert (ours.get("owls", 1), theirs.get("owls", 1)) == (HITS, None)


FILL = """
import sys
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote.cache import ResultCache
cache = ResultCache(sys.argv[1], ())
for number in range(int(sys.argv[2]), int(sys.argv[2]) + 50):
    cache.put(f"q{number}", 1, [Hit(Document("7", "Owl", "Owls é\\nfly."), 1.5, "")])
"""


def test_processes_share_a_cache(tmp_path):
    path = tmp_path / "c"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen([sys.executable, "-c", FILL, str(path), first], env=environment) for first in ("0", "50")
    ]
    assert [process.wait() for process in processes] == [0, 0]
    cache = ResultCache(path, ())
    assert all(cache.get(f"q{number}", 1) == HITS for number in range(100))


def test_a_file_that_is_no_cache_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("This is not a database, and longer than a header of one would be." * 10)
    with pytest.raises(UserError, match=r"notes\.txt: cannot be used as a cache"):
        ResultCache(tmp_path / "notes.txt", ())


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [(b"", 404, "status 404"), (b'{"result": []}', 200, "0 lists"), (b"hi", 200, "not JSON")],
)
def test_an_engine_that_cannot_be_used_is_known_before_the_run(server, answer, counters, body, status, says):
    server.answers = [answer.raw(body, status)]
    with pytest.raises(UserError, match=rf"task\.retriever cannot be searched: POST {server.url}.*{says}"):
        open_at(server, counters)


def test_tokens_come_from_the_environment(server, answer, counters, monkeypatch):
    monkeypatch.setenv("JAXSEARCHRL_SEARCH_TOKEN", " secret\n")
    server.answers = [answer.ok(ANSWER)]
    open_at(server, counters)
    assert server.requests[0].headers["Authorization"] == "Bearer secret"
    monkeypatch.setenv("JAXSEARCHRL_SEARCH_TOKEN", "sec\nret")
    with pytest.raises(UserError, match="JAXSEARCHRL_SEARCH_TOKEN has a character") as caught:
        open_at(server, counters)
    assert "ret\b" not in str(caught.value)


def test_the_fingerprint_names_the_index_and_not_the_host(server, answer, counters):
    server.answers = [answer.ok(ANSWER)]
    here = open_at(server, counters)
    there = open_at(server, counters, url=server.url.replace("127.0.0.1", "localhost"))
    elsewhere = open_at(server, counters, url=server.url + "/other")
    assert here.fingerprint == there.fingerprint != elsewhere.fingerprint
