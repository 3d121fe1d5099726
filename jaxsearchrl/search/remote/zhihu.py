"""Searches the web by Zhihu's open platform, as the experiment 03-search-r1 of llm-agent-rl-lab does.

Several keys take turns. A key that is answered 429, or that its quota is used up, is not used again.
"""

import logging
import re
import threading
import time
from collections.abc import Sequence
from urllib.parse import urljoin

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote.answers import Part
from jaxsearchrl.search.remote.http import PASSING, Http, HttpFailure

URL = "https://developer.zhihu.com/api/v1/content/global_search"
KEYS_VARIABLE = "ZHIHU_SEARCH_KEYS"
"""The environment variable with the keys, separated by commas or line breaks."""

MAX_COUNT = 20
TEXT_CHARS = 1200

_RATE_LIMITED, _QUOTA_USED_UP = 30001, 30002  # values of Code, beside 0
_MARKS = re.compile(r"</?em>")  # around the words of the query

_log = logging.getLogger(__name__)


class ZhihuEngine:
    """Implements `Engine`. url: of the search; the quota is asked for beside it."""

    def __init__(self, http: Http, url: str, keys: Sequence[str]):
        self._http, self._url = http, url or URL
        self._lock, self._keys = threading.Lock(), list(dict.fromkeys(keys))

    def check(self) -> None:
        """Asks for the quota of each key, which costs none of it, and retires those that have none left."""
        for number, key in enumerate(tuple(self._keys), start=1):
            left = self._left(key)
            if left <= 0:
                self._retire(key, f"key {number} of {KEYS_VARIABLE} has no searches left today")
        self._next()

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """At most MAX_COUNT results, of a title and a summary each; the address is the id, 1 / rank the score."""
        count = min(k, MAX_COUNT)
        fields = {"Query": query, "Count": str(count), "SearchDB": "all"}
        while True:
            key = self._next()
            try:
                answer = self._http.json(
                    "GET", self._url, fields=fields, headers=_headers(key), passing=PASSING - {429}
                )
            except HttpFailure as failure:
                if failure.status != 429:
                    raise
                self._retire(key, str(failure))
                continue
            code = _code(answer)
            if code in (_RATE_LIMITED, _QUOTA_USED_UP):
                self._retire(key, f"{answer.where}: Code {code}")
                continue
            _check(answer, code)
            return [_hit(item, rank) for rank, item in enumerate(answer["Data"]["Items"].items(count), start=1)]

    def _left(self, key: str) -> float:
        answer = self._http.json("GET", urljoin(self._url, "../quota"), headers=_headers(key))
        _check(answer, _code(answer))
        for item in answer["Data"].items(1000):
            if item["APIID"].value == "global_search":
                return item["RemainingQuota"].number()
        raise InfrastructureError(f"{answer.where}: names no quota of global_search")

    def _next(self) -> str:
        with self._lock:
            if not self._keys:
                raise InfrastructureError(
                    f"all keys of {KEYS_VARIABLE} are used up; give others, or wait until tomorrow"
                )
            self._keys.append(self._keys.pop(0))
            return self._keys[-1]

    def _retire(self, key: str, why: str) -> None:
        with self._lock:
            if key in self._keys:  # else another thread was first
                self._keys.remove(key)
                _log.warning("%s; that key is not used again, %d are left", why, len(self._keys))


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}", "X-Request-Timestamp": str(int(time.time()))}


def _code(answer: Part) -> float:
    code = answer.get("Code")
    return 0 if code is None else code.number()


def _check(answer: Part, code: float) -> None:
    if code:
        message = answer.get("Message")
        raise InfrastructureError(f"{answer.where}: Code {code:g}, {'' if message is None else message.text()[:200]!r}")


def _hit(item: Part, rank: int) -> Hit:
    def text(name: str) -> str:
        part = item.get(name)
        return "" if part is None else _MARKS.sub("", part.text()).strip()

    title = text("Title")
    return Hit(Document(item["Url"].id(), title, text("ContentText")[:TEXT_CHARS]), 1 / rank, "")
