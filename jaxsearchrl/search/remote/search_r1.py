"""Searches by a server that speaks Search-R1's `/retrieve`: theirs, ours (search/server.py), any other."""

from collections.abc import Sequence

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.search.contents import split_contents
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote.answers import Part
from jaxsearchrl.search.remote.http import Http

TOKEN_VARIABLE = "JAXSEARCHRL_SEARCH_TOKEN"
"""The environment variable from which client and server take the bearer token."""


class SearchR1Engine:
    """Implements `Engine`. url: of `/retrieve`; token: for its `Authorization: Bearer`, "" without."""

    def __init__(self, http: Http, url: str, token: str = ""):
        self._http, self._url = http, url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def check(self) -> None:
        """One search."""
        self.search("water", 1)

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """Asks with scores: without them Search-R1's own server fails."""
        body = {"queries": [query], "topk": k, "return_scores": True}
        lists = self._http.json("POST", self._url, body=body, headers=self._headers)["result"]
        [hits] = _exactly(lists, 1)
        return [_hit(item) for item in hits.items(k)]


def _exactly(lists: Part, count: int) -> list[Part]:
    items = lists.items(count)
    if len(items) != count:
        raise InfrastructureError(f"{lists.where}: {len(items)} lists for {count} query")
    return items


def _hit(item: Part) -> Hit:
    """From stored documents, which have title and text but perhaps no id, or from rows {id, contents}."""
    document = item["document"]
    contents = document["contents"].text()
    title, text = document.get("title"), document.get("text")
    if title is not None and text is not None:
        pair = title.text(), text.text()
    else:
        pair = split_contents(contents)
    document_id = document.get("id")
    # Servers with stored documents have no ids: what a document says is all that there is to name it.
    named = contents.partition("\n")[0][:200] if document_id is None else document_id.id()
    return Hit(Document(named, *pair), item["score"].number(), "")
