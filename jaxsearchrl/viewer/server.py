"""Serves a site on this machine: pages are read-only, and a browser is told to run nothing that they say."""

import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

from jaxsearchrl.errors import UserError
from jaxsearchrl.viewer.render import POLICY
from jaxsearchrl.viewer.site import Page, Site

_LOCAL = ("localhost", "127.0.0.1", "::1")
_PAUSE = 2.0  # seconds between looks at the folder


class ViewerServer(ThreadingHTTPServer):
    """Listens at once; `serve_forever` answers. port 0 takes any free one (`address` says which).

    A server on this machine answers to this machine's names only, so that a page elsewhere cannot have its own name
    point here and read along. Raises UserError where it cannot listen.
    """

    daemon_threads = True

    def __init__(self, site: Site, host: str, port: int) -> None:
        self.site, self._host = site, f"[{host}]" if ":" in host else host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.names = {*_LOCAL, host} if host in _LOCAL else None
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UserError(f"cannot listen on {host}:{port} ({error}); choose another --port or --host") from error
        self._asked, self._idle = 0, threading.Condition()
        threading.Thread(target=self._read_ahead, daemon=True).start()

    @property
    def address(self) -> str:
        """Where to point a browser."""
        return f"http://{self._host}:{self.server_address[1]}/"

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Reading ahead rests within the block."""
        with self._idle:
            self._asked += 1
        try:
            yield
        finally:
            with self._idle:
                self._asked -= 1
                self._idle.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went to another page before this one had come is no fault."""
        if not isinstance(sys.exception(), ConnectionError):
            logging.getLogger(__name__).exception("an answer to %s failed", client_address)

    def _rest(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._asked)

    def _read_ahead(self) -> None:
        """Reads every file of records once, newest first, so that pages need not; then looks for new ones."""
        fault = ""
        while True:
            try:
                self.site.look_again()
                for file in [file for run in self.site.runs for file in run.files().values()]:
                    file.read_ahead(self._rest)
            except (UserError, OSError) as error:  # a run that has gone; what is broken in a file stands on its page
                if str(error) != fault:
                    logging.getLogger(__name__).warning("%s", error)
                fault = str(error)
            time.sleep(_PAUSE)


class _Handler(BaseHTTPRequestHandler):
    server: ViewerServer  # type: ignore[assignment]
    server_version, sys_version = "jaxsearchrl", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        with self.server.answering():
            self._answer()

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self) -> None:
        try:
            parts, for_us = urlsplit(self.path), self._for_us()
        except ValueError:  # brackets around what is no address
            return self._send(Page(b"This is no address.", "text/plain", 400))
        if not for_us:
            return self._send(Page(b"This server answers to localhost only.", "text/plain", 403))
        path = unquote(parts.path, errors="surrogateescape").removeprefix("/")  # as Python spells names of files
        if not path or path.endswith("/"):
            path += "index.html"
        try:
            signature = self.server.site.signature(path)
            tag = f'"{signature}"' if signature else ""
            if tag and self.headers.get("If-None-Match") == tag:
                page = Page(b"", status=304)
            else:
                page = self.server.site.page(path, dict(parse_qsl(parts.query)))
        except (
            Exception
        ):  # a fault of ours, or of a folder that is being changed: the browser is told, the server goes on
            logging.getLogger(__name__).exception("no page could be made for %s", self.path)
            page, tag = Page(b"This page cannot be shown; the explorer's terminal says why.", "text/plain", 500), ""
        self._send(page, tag)

    def _for_us(self) -> bool:
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return self.server.names is None or name in self.server.names

    def _send(self, page: Page, tag: str = "") -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", f"{page.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Content-Security-Policy", f"{POLICY}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-cache")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        logging.getLogger(__name__).debug(format, *args)
