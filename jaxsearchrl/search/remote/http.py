"""Requests to a search engine: a pool of connections, time limits, few retries with pauses, answers of bounded size."""

import random
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from jaxsearchrl import strict_json
from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.search.remote.answers import Part

MAX_ANSWER_BYTES = 16 * 2**20
CONNECTIONS = 64
"""Kept open to a host; more threads than that open further ones."""

FIRST_PAUSE = 0.5
MAX_PAUSE = 30.0
"""Seconds before the second try, twice as many before the third, and so on, give or take half; and the most, whatever
an answer's Retry-After says."""

# What another try may heal: too many requests, and faults of the server or of what stands before it.
PASSING = frozenset({429, 500, 502, 503, 504})


class HttpFailure(InfrastructureError):
    """A request that was not answered as it should be. `status`: of the answer, 0 without one.

    `passing`: another try may do better, after `pause` seconds if the answer named them.
    """

    def __init__(self, message: str, status: int = 0, *, passing: bool = False, pause: float | None = None):
        super().__init__(message)
        self.status, self.passing, self.pause = status, passing, pause


class Http:
    """Thread-safe. timeout: seconds of one request, from connecting to the last byte; tries: requests at most."""

    def __init__(self, timeout: float, tries: int, counters: SearchCounters):
        self._timeout, self._tries, self._counters = timeout, tries, counters
        self._pool = urllib3.PoolManager(maxsize=CONNECTIONS, retries=False, timeout=urllib3.Timeout(total=timeout))

    def json(
        self,
        method: str,
        url: str,
        *,
        fields: Mapping[str, str] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        passing: frozenset[int] = PASSING,
    ) -> Part:
        """The JSON that a request is answered with. fields: of the query string; body: becomes JSON.

        Tries again after what may pass: a connection that fails or breaks, a time limit, a status of `passing`.
        Raises HttpFailure, which names the address without its query.
        """
        where = f"{method} {shown(url)}"
        request: dict[str, Any] = {"headers": {"User-Agent": "jaxsearchrl", "Accept": "application/json"}}
        request["headers"] |= headers or {}
        request |= {"fields": fields} if body is None else {"json": body}
        for number in range(1, self._tries + 1):
            try:
                response, data = self._once(method, url, where, **request)
                self._check(response, data, where, passing)
                return Part(_json(data, where), where)
            except HttpFailure as failure:
                if not failure.passing or number == self._tries:
                    raise
                pause = FIRST_PAUSE * 2 ** (number - 1) * random.uniform(0.5, 1.5)
                self._counters.add("retries")
                time.sleep(min(pause if failure.pause is None else failure.pause, MAX_PAUSE))
        raise AssertionError("tries is at least 1")

    def _once(self, method: str, url: str, where: str, **request: Any) -> tuple[BaseHTTPResponse, bytes]:
        """An answer of any status, and its body. Raises HttpFailure where none came."""
        deadline = time.monotonic() + self._timeout
        try:
            response = self._pool.request(method, url, preload_content=False, redirect=False, **request)
            try:
                return response, _read(response, deadline, where)
            finally:
                response.close()  # after a whole body its connection is in the pool again, and stays there
        except TimeoutError:
            raise HttpFailure(f"{where}: no whole answer within {self._timeout:g} s", passing=True) from None
        except HTTPError as error:
            raise HttpFailure(f"{where}: {type(error).__name__}, {error}", passing=True) from error

    def _check(self, response: BaseHTTPResponse, data: bytes, where: str, passing: frozenset[int]) -> None:
        status = response.status
        if status == 429:
            self._counters.add("rate_limited")
        if status != 200:
            said = " ".join(data[:300].decode("utf-8", "replace").split())
            pause = _retry_after(response)
            raise HttpFailure(f"{where}: status {status}, {said!r}", status, passing=status in passing, pause=pause)


def shown(url: str) -> str:
    """The address as messages may have it: without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _read(response: BaseHTTPResponse, deadline: float, where: str) -> bytes:
    """The whole body. Piece by piece, since the pool's time limit is for each piece alone."""
    parts, size = [], 0
    while part := response.read1(2**16):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise HttpFailure(f"{where}: the answer has more than {MAX_ANSWER_BYTES} bytes", response.status)
        if time.monotonic() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _json(data: bytes, where: str) -> object:
    try:
        return strict_json.parse(data.decode())
    except ValueError as error:
        raise HttpFailure(f"{where}: the answer is not JSON ({error}), it begins {data[:80]!r}") from error


def _retry_after(response: BaseHTTPResponse) -> float | None:
    """Seconds that the answer asks to wait, if it does so in a form that is valid."""
    try:
        return urllib3.Retry().get_retry_after(response)
    except HTTPError:
        return None
