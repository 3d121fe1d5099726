"""The server over real HTTP."""

import http.client
import socket
import struct
import threading
import time

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.viewer.server import ViewerServer
from jaxsearchrl.viewer.site import Page, Site


@pytest.fixture(scope="module")
def server(run_folder):
    server = ViewerServer(Site(run_folder), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while any(file.known() is None for run in server.site.runs for file in run.files().values()):
        time.sleep(0.01)  # what is read ahead changes pages
    yield server
    server.shutdown()
    server.server_close()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_pages_come_with_a_strict_policy(server):
    answer, body = ask(server, "/rollouts/train/1/1.html")
    assert answer.status == 200
    assert b"Turn 1" in body
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert ask(server, "/rollouts/train/1/1.txt")[0].getheader("Content-Type") == "text/plain; charset=utf-8"
    assert ask(server, "/_viewer/viewer.js")[0].getheader("Content-Type") == "text/javascript; charset=utf-8"


def test_an_unchanged_page_is_not_sent_again(server):
    first, body = ask(server, "/")
    again, nothing = ask(server, "/index.html", If_None_Match=first.getheader("ETag"))
    assert (first.status, again.status, nothing) == (200, 304, b"")
    head, nothing = ask(server, "/", "HEAD")
    assert (head.status, head.getheader("Content-Length"), nothing) == (200, str(len(body)), b"")


@pytest.mark.parametrize("path", ["/%2e%2e/secret", "/../../etc/passwd", "//etc/passwd", "/%00", "/x.html", "/%ff"])
def test_other_addresses_are_refused(server, path):
    assert ask(server, path)[0].status == 404


def test_other_names_for_this_machine_are_refused(server):
    # A page elsewhere that points its own name at 127.0.0.1 would come with that name.
    assert ask(server, "/", Host="evil.example:80")[0].status == 403
    assert ask(server, "/", Host="localhost:1")[0].status == 200
    assert ask(server, "/", Host="[::1]:1")[0].status == 200
    assert ask(server, "/", "POST")[0].status == 501


def test_what_is_no_address_is_refused(server):
    assert ask(server, "/", Host="[")[0].status == 400
    assert ask(server, "http://[/", Host="localhost")[0].status == 400
    assert ask(server, "/?x=%ff&y=%00&text")[0].status == 200


def test_a_fault_of_ours_is_answered_and_told(server, monkeypatch, caplog):
    monkeypatch.setattr(server.site, "page", lambda *_: 1 // 0)
    answer, body = ask(server, "/rollouts/train/1.html")
    assert (answer.status, b"cannot be shown" in body) == (500, True)
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert ask(server, "/rollouts/train/1.html")[0].status == 200


def test_a_browser_that_went_on_is_no_fault(server, monkeypatch, caplog, capfd):
    monkeypatch.setattr(server.site, "page", lambda *_: Page(b"x" * 50_000_000))
    ended, close = threading.Event(), server.shutdown_request
    monkeypatch.setattr(server, "shutdown_request", lambda request: (close(request), ended.set()))
    connection = socket.create_connection(server.server_address)
    connection.sendall(b"GET /rollouts/train/1.html HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.recv(10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()  # with a reset
    assert ended.wait(10)
    assert (caplog.text, capfd.readouterr().err) == ("", "")


def test_text_is_looked_for_by_address(server):
    _, body = ask(server, "/rollouts/train/1.html?text=q2%3A+who")
    assert body.count(b'<section class="group"') == 1


def test_a_taken_port_is_explained(server, run_folder):
    with pytest.raises(UserError, match="choose another --port"):
        ViewerServer(Site(run_folder), "127.0.0.1", server.server_address[1])
