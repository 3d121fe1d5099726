"""What becomes of a request that goes wrong: tried again or not, how often, after which pause, and what is said."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxsearchrl.search.remote.http import MAX_ANSWER_BYTES, MAX_PAUSE, Http, HttpFailure, shown


def counted(counters):
    counters.add("cached")  # so that there is something to take
    metrics = counters.take()
    return metrics["search/retries"], metrics["search/rate_limited"]


def test_a_good_answer_is_given_at_once(server, answer, counters, pauses):
    server.answers = [answer.ok({"a": "\ud800 é", "b": [1, None]})]
    part = Http(5, 3, counters).json("POST", server.url, body={"q": "é"}, headers={"Authorization": "Bearer x"})
    assert part.value == {"a": "\ud800 é", "b": [1, None]}
    assert server.asked() == {"q": "é"}
    assert server.requests[0].headers["Authorization"] == "Bearer x"
    assert (pauses, counted(counters)) == ([], (0, 0))


def test_fields_are_quoted(server, answer, counters):
    server.answers = [answer.ok(1)]
    Http(5, 1, counters).json("GET", server.url, fields={"q": "a&b=c é\0"})
    assert server.requests[0].path == "/retrieve?q=a%26b%3Dc+%C3%A9%00"


def test_one_connection_serves_many_requests(server, answer, counters):
    server.answers = [answer.ok(1), answer.raw(b"no", 404), answer.ok(2)]
    ports = []
    server.process_request = lambda request, address, plain=server.process_request: (
        ports.append(address[1]),
        plain(request, address),
    )
    http = Http(5, 1, counters)
    http.json("GET", server.url)
    with pytest.raises(HttpFailure):
        http.json("GET", server.url)
    assert http.json("GET", server.url).value == 2
    assert len(ports) == 1


PASSING = {
    "status 500": lambda answer: answer.raw(b"oops", 500),
    "status 503": lambda answer: answer.raw(b"", 503),
    "a cut body": lambda answer: answer.cut,
    "a cut chunk": lambda answer: answer.cut_chunk,
    "a reset connection": lambda answer: answer.reset,
    "no answer in time": lambda answer: answer.slow(0.6),
    "drops of an answer": lambda answer: answer.drip(b"1" * 60, 3.0),
}


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_tried_again(server, answer, counters, pauses, fault):
    server.answers = [PASSING[fault](answer), PASSING[fault](answer), answer.ok("healed")]
    assert Http(0.3, 3, counters).json("POST", server.url, body={}).value == "healed"
    assert len(server.requests) == 3
    assert 0.25 <= pauses[0] <= 0.75
    assert 0.5 <= pauses[1] <= 1.5
    assert counted(counters) == (2, 0)


@pytest.mark.parametrize("fault", PASSING)
def test_tries_end(server, answer, counters, pauses, fault):
    server.answers = [PASSING[fault](answer)]
    with pytest.raises(HttpFailure, match=rf"POST http://127.0.0.1:{server.server_port}/retrieve: "):
        Http(0.3, 2, counters).json("POST", server.url, body={})
    assert (len(server.requests), len(pauses)) == (2, 1)


def test_nobody_listens(counters, pauses):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(HttpFailure, match="refused"):
        Http(5, 3, counters).json("GET", f"http://127.0.0.1:{port}/retrieve")
    assert len(pauses) == 2


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"detail": "no such index"}', 404, "status 404, .*no such index"),
        (b"who are you", 401, "status 401"),
        (b"", 302, "status 302"),
        (b"<html>\nLog in", 200, "not JSON .* begins b'<html>"),
        (b'{"result": [[', 200, "not JSON"),
        (b"\xff\xfe", 200, "not JSON"),
        (b"[NaN]", 200, "NaN is not JSON"),
        (b"[" * 100_000, 200, "nested deeper"),
        (b'{"a": 1, "a": 2}', 200, "twice"),
        (b'"' + b"a" * MAX_ANSWER_BYTES + b'"', 200, "more than 16777216 bytes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_will_not_pass_fails_at_once(server, answer, counters, pauses, body, status, says):
    server.answers = [answer.raw(body, status)]
    with pytest.raises(HttpFailure, match=says) as caught:
        Http(5, 3, counters).json("GET", server.url)
    assert len(str(caught.value)) < 500
    assert (len(server.requests), pauses) == (1, [])


@pytest.mark.parametrize(("said", "waits"), [("7", 7), ("100000", MAX_PAUSE), ("soon", None), ("-5", None)])
def test_retry_after_is_heeded_up_to_a_limit(server, answer, counters, pauses, said, waits):
    server.answers = [answer.raw(b"", 429, Retry_After=said), answer.ok(1)]
    assert Http(5, 2, counters).json("GET", server.url).value == 1
    assert [waits] == pauses if waits else 0.25 <= pauses[0] <= 0.75
    assert counted(counters) == (1, 1)


def test_who_handles_a_status_gets_it_at_once(server, answer, counters, pauses):
    server.answers = [answer.raw(b"", 429)]
    with pytest.raises(HttpFailure) as caught:
        Http(5, 3, counters).json("GET", server.url, passing=frozenset({500}))
    assert (caught.value.status, len(server.requests), counted(counters)) == (429, 1, (0, 1))


def test_messages_have_no_secrets(server, answer, counters):
    server.answers = [answer.raw(b"", 404)]
    assert shown("https://me:secret@host:9/a/b?key=secret") == "https://host:9/a/b"
    with pytest.raises(HttpFailure) as caught:
        Http(5, 1, counters).json("GET", server.url, fields={"key": "secret"}, headers={"Authorization": "secret"})
    assert "secret" not in str(caught.value)


def test_threads_share_it(server, answer, counters):
    server.answers = [answer.ok({"result": 1})]
    http = Http(10, 1, counters)
    with ThreadPoolExecutor(16) as pool:
        values = list(pool.map(lambda _: http.json("GET", server.url)["result"].value, range(200)))
    assert values == [1] * 200
