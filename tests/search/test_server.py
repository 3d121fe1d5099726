"""The server as its clients meet it: Search-R1's and SkyRL's requests, limits, tokens, and how it stops."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import urllib3
import uvicorn

from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.__main__ import main
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.search.remote.http import Http
from jaxsearchrl.search.remote.search_r1 import SearchR1Engine
from jaxsearchrl.search.server import Limits, make_app, serve

ROOT = Path(__file__).parents[2]
ROWS = [
    {"id": "007", "title": "Owl", "text": "Owls carry\nthe mail."},
    {"id": "1", "contents": '"Broom"\nFast é ones, for owls too.'},
    {"id": "2", "text": '"Quoted" at first\nand no title: owls.'},
    {"id": "3", "text": '"Quoted"\nand no title, yet looks like one.'},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("server") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return open_or_build(path)


class Client:
    def __init__(self, url):
        self.url, self.pool = url, urllib3.PoolManager(retries=False)

    def post(self, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.pool.request("POST", self.url, body=data, headers=headers, timeout=20)
        return answer.status, answer.json()

    def get(self, path, **headers):
        return self.pool.request("GET", self.url.replace("/retrieve", path), headers=headers, timeout=20)


@pytest.fixture
def start():
    """Starts a server of this process; returns its client."""
    stops = []

    def at_work(index, limits=None, token=""):
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(make_app(index, limits or Limits(), token), log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        stops.append((server, thread))
        return Client(f"http://127.0.0.1:{listening.getsockname()[1]}/retrieve")

    yield at_work
    for server, thread in stops:
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(start, index):
    return start(index)


def test_search_r1s_client(client, index):
    """Its loop asks with scores, and reads result[i][j]["document"]["contents"]: a quoted title, and text."""
    status, answer = client.post({"queries": ["owls", "broom", "zzzz"], "topk": 2, "return_scores": True})
    assert status == 200
    assert [*answer] == ["result"]
    first, second, none = answer["result"]
    assert [item["document"]["id"] for item in first] == [hit.document.id for hit in index.search("owls", 2)]
    assert [item["score"] for item in first] == [hit.score for hit in index.search("owls", 2)]
    assert second[0]["document"] == {
        "id": "1",
        "title": "Broom",
        "text": "Fast é ones, for owls too.",
        "contents": '"Broom"\nFast é ones, for owls too.',
    }
    assert none == []


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_scores_items_are_documents(client, index, count):
    """Search-R1's own server fails here, and with two queries gives wrong data."""
    queries = ["owls", "broom", "mail"][:count]
    status, answer = client.post({"queries": queries, "topk": 3, "return_scores": False})
    found = [[item["id"] for item in items] for items in answer["result"]]
    assert (status, found) == (200, [[hit.document.id for hit in index.search(query, 3)] for query in queries])


def test_skyrls_client(client):
    """Once it sent one `query`; now a list of one. It reads result[i][j]["document"]["contents"], too."""
    once = client.post({"query": "owls", "topk": 3, "return_scores": True})
    now = client.post({"queries": ["owls"], "topk": 3, "return_scores": True}, Accept="application/json")
    assert once == now
    assert len(once[1]["result"][0]) == 3


@pytest.mark.parametrize("topk", [{"topk": None}, {"topk": 0}, {}])
def test_without_topk_the_servers_own_counts(start, index, topk):
    client = start(index, Limits(topk=1))
    assert [len(items) for items in client.post({"queries": ["owls"], **topk})[1]["result"]] == [1]


def test_contents_come_apart_as_they_were(client, index):
    """Through our own client: ids, titles and texts are those of the corpus."""
    engine = SearchR1Engine(Http(20, 1, SearchCounters()), client.url)
    for query in ("owls", "quoted"):
        found = engine.search(query, 4)
        assert [hit.document for hit in found] == [hit.document for hit in index.search(query, 4)]
    [contents] = [item["contents"] for item in client.post({"queries": ["yet looks"], "topk": 1})[1]["result"][0]]
    assert contents == '""\n"Quoted"\nand no title, yet looks like one.'


def test_hostile_queries_are_searched(client):
    queries = ["", "  ", "\0", 'AT&T "10-K" (2019) AND revenue:', "owls \ud800", "owl " * 2000, "*?[", "title:owl"]
    status, answer = client.post({"queries": queries, "topk": 1})
    assert (status, len(answer["result"])) == (200, len(queries))
    assert [len(items) for items in answer["result"]][:3] == [0, 0, 0]
    assert answer["result"][4][0]["id"] == "007"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 422, "not JSON"),
        (b"\xff", 422, "not JSON"),
        (b"[]", 422, "valid dict"),
        (b"{}", 422, "give .queries."),
        ({"queries": ["a"], "query": "a"}, 422, "give .queries."),
        ({"queries": "a"}, 422, "valid list"),
        ({"queries": [1]}, 422, "valid string"),
        ({"queries": ["a"], "topk": -1}, 422, "topk = -1: must be between 1 and 5"),
        ({"queries": ["a"], "topk": 6}, 422, "topk = 6"),
        ({"queries": ["a"] * 4}, 422, "4 queries; at most 3"),
        ({"queries": ["a", "b" * 101]}, 422, "query 1 has 101 characters; at most 100"),
        ({"queries": ["a" * 3000]}, 413, "more than 2000 bytes"),
        (b"[" * 1500, 422, "nested deeper"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_bad_requests_are_told_why(start, index, body, status, says):
    limits = Limits(max_topk=5, max_queries=3, max_query_chars=100, max_body_bytes=2000)
    given, answer = start(index, limits).post(body)
    assert given == status
    assert re.search(says, json.dumps(answer["detail"]).replace('\\"', "'"))


def test_the_token_is_asked_for(start, index):
    client = start(index, token="secret")
    for headers in ({}, {"Authorization": "Bearer Secret"}, {"Authorization": "Basic secret"}):
        assert client.post({"query": "owls"}, **headers)[0] == 401
        assert client.get("/metrics", **headers).status == 401
    assert client.get("/health").status == 200
    assert client.post({"query": "owls"}, Authorization="Bearer secret")[0] == 200


def test_health_metrics_and_openapi(client, index):
    assert client.get("/health").json() == {"status": "ok", "documents": 4, "fingerprint": index.fingerprint}
    client.post({"queries": ["owls", "mail"]})
    client.post({})
    lines = client.get("/metrics").data.decode().splitlines()
    for line in (
        'search_requests_total{status="200"} 1.0',
        'search_requests_total{status="422"} 1.0',
        "search_queries_total 2.0",
        "search_request_seconds_count 2.0",
    ):
        assert line in lines
    described = client.get("/openapi.json").json()["paths"]["/retrieve"]["post"]
    assert {*described["requestBody"]["content"]["application/json"]["schema"]["properties"]} == {
        "queries",
        "query",
        "topk",
        "return_scores",
    }


class Together:
    """A retriever whose searches wait for each other: they end only if as many are under way at once."""

    size, fingerprint = 0, ""

    def __init__(self, parties):
        self.barrier = threading.Barrier(parties, timeout=10)

    def search(self, query, k):
        self.barrier.wait()
        return []


def test_queries_of_a_batch_and_of_several_requests_are_searched_side_by_side(start):
    client = start(Together(4), Limits(threads=4))
    assert client.post({"queries": ["a"] * 4}) == (200, {"result": [[]] * 4})
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: client.post({"query": "a"})[0], range(4))] == [200] * 4


def test_a_search_that_fails_is_no_empty_result(start, index):
    class Broken(Together):
        def search(self, query, k):
            raise InfrastructureError("the disk is gone")

    client = start(Broken(1))
    assert client.post({"query": "a"}) == (500, {"detail": "the disk is gone"})
    assert 'search_requests_total{status="500"} 1.0' in client.get("/metrics").data.decode()


def test_the_command_serves_until_it_is_asked_to_stop(tmp_path):
    """What is at work at SIGTERM is answered; the exit status is 0."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    command = [sys.executable, "-m", "jaxsearchrl.search", "serve", str(corpus), "--port", "0", "--threads", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAXSEARCHRL_SEARCH_TOKEN": "secret"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"4 documents at (http://127\.0\.0\.1:\d+/retrieve)\n", line)
        assert found, (line, process.communicate())
        client = Client(found[1])
        assert client.post({"query": "owls"})[0] == 401
        bearer = {"Authorization": "Bearer secret"}
        assert client.post({"query": "owls"}, **bearer)[0] == 200
        with ThreadPoolExecutor(1) as pool:
            batch = pool.submit(client.post, {"queries": ["owls"] * 4000}, **bearer)
            while not batch.done():
                if "search_requests_at_work 1.0" in client.get("/metrics", **bearer).data.decode():
                    break
            process.send_signal(signal.SIGTERM)
            status, answer = batch.result()
        assert (status, len(answer["result"])) == (200, 4000)
        output = process.communicate(timeout=20)
    assert (process.returncode, output) == (0, ("", ""))


def test_an_address_that_is_taken_is_named(index):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(UserError, match=r"cannot listen there .*choose another port"),
    ):
        serve(index, Limits(), "127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="--port 70000"):
        serve(index, Limits(), "127.0.0.1", 70000)


def test_without_the_extra_its_name_is_said(tmp_path, monkeypatch, capsys):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps(ROWS[0]))
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "jaxsearchrl.search.server")
    assert main(["serve", str(corpus)]) == 2
    assert "pip install 'jaxsearchrl[server]'" in capsys.readouterr().err
