"""A real HTTP server on this machine that answers as it is told, also badly."""

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server = self.server
        with server.lock:
            server.requests.append(
                SimpleNamespace(method=self.command, path=self.path, headers=self.headers, body=body)
            )
            answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        answer(self)

    do_GET = do_POST  # noqa: N815

    def log_message(self, format, *arguments):
        pass


class Server(ThreadingHTTPServer):
    """`answers` are given in order, the last one again and again; `requests` is what was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.requests, self.answers = threading.Lock(), [], []
        self.url = f"http://127.0.0.1:{self.server_port}/retrieve"

    def asked(self, number=-1):
        """The JSON of a request."""
        return json.loads(self.requests[number].body)

    def handle_error(self, request, client_address):
        pass  # a client that gave up


def ok(value):
    """An answer with this JSON."""
    return raw(json.dumps(value).encode())


def raw(body, status=200, **headers):
    """An answer with these bytes."""

    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def slow(seconds):
    """No answer for a while."""

    def answer(handler):
        time.sleep(seconds)
        handler.close_connection = True

    return answer


def drip(body, seconds):
    """An answer that comes byte by byte, each within any time limit of a socket."""

    def answer(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        for byte in body:
            handler.wfile.write(bytes([byte]))
            time.sleep(seconds / len(body))

    return answer


def cut(handler):
    """A connection that is closed in the middle of the body."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"result": [[')
    handler.close_connection = True


def cut_chunk(handler):
    """The same, of a body in chunks."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"d\r\n" + b'{"result": [[' + b"\r\n")
    handler.close_connection = True


def reset(handler):
    """A connection that is reset before the answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


@contextmanager
def serving():
    """A server at work."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
