"""Searches Wikipedia by MediaWiki's Action API: the introductions of the pages found. No key is needed."""

import threading
import time
from collections.abc import Sequence

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote.answers import Part
from jaxsearchrl.search.remote.http import Http

URL = "https://en.wikipedia.org/w/api.php"

MAX_COUNT = 20  # pages of which one answer has the text
MAX_QUERY_CHARS = 300  # a longer one is an error
TEXT_CHARS = 1200
SPACING = 0.31
"""Seconds between the starts of two requests, so that one run does not keep the service busy."""


class WikipediaEngine:
    """Implements `Engine`. url: of api.php, of any wiki with the extensions CirrusSearch and TextExtracts."""

    def __init__(self, http: Http, url: str):
        self._http, self._url = http, url or URL
        self._lock, self._free_at = threading.Lock(), 0.0

    def check(self) -> None:
        """One search."""
        self.search("water", 1)

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """At most MAX_COUNT pages; the page's number is the id, 1 / rank the score."""
        words = _words(query)
        if not words:
            return []
        count = min(k, MAX_COUNT)
        fields = {
            "action": "query",
            "format": "json",
            "formatversion": "2",
            "generator": "search",
            "gsrsearch": words,
            "gsrlimit": str(count),
            "prop": "extracts",
            "exintro": "1",
            "explaintext": "1",
            "exlimit": "max",
            "exchars": str(TEXT_CHARS),
        }
        self._wait()
        answer = self._http.json("GET", self._url, fields=fields)
        if (error := answer.get("error")) is not None:
            raise InfrastructureError(f"{answer.where}: error {error['code'].text()[:100]!r}")
        found = answer.get("query")
        pages = [] if found is None else found["pages"].items(count)  # without a page there is no "query"
        pages.sort(key=lambda page: page["index"].number())
        return [_hit(page, rank) for rank, page in enumerate(pages, start=1)]

    def _wait(self) -> None:
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + SPACING
        time.sleep(start - now)


def _words(query: str) -> str:
    """Without what the search would take for an operator, and as long as it may be."""
    words = "".join(character if character.isalnum() else " " for character in query.lower()).split()
    text = " ".join(words)[: MAX_QUERY_CHARS + 1]
    return text if len(text) <= MAX_QUERY_CHARS else text[: max(text.rfind(" "), 0)] or text[:MAX_QUERY_CHARS]


def _hit(page: Part, rank: int) -> Hit:
    extract = page.get("extract")
    return Hit(
        Document(page["pageid"].id(), page["title"].text(), "" if extract is None else extract.text()), 1 / rank, ""
    )
