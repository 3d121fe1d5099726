"""Searches by Elasticsearch's `_search`, which OpenSearch and Quickwit have as well."""

from collections.abc import Sequence

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.remote.answers import Part
from jaxsearchrl.search.remote.http import Http

KEY_VARIABLE = "ELASTICSEARCH_API_KEY"
"""The environment variable with the API key, sent as `Authorization: ApiKey …`."""

TITLE_BOOST = 2.0  # the local index takes title and text as one instead, for which the three have no common query


class ElasticsearchEngine:
    """Implements `Engine`. url: of an index, with `/_search` at its end; fields: names of title, text and id.

    Without a name for the id it is the hit's `_id`. Quickwit has no ids of its own: name a field there.
    """

    def __init__(self, http: Http, url: str, *, title_field: str, text_field: str, id_field: str = "", key: str = ""):
        self._http, self._url = http, url
        self._title, self._text, self._id = title_field, text_field, id_field
        self._headers = {"Authorization": f"ApiKey {key}"} if key else {}

    def check(self) -> None:
        """One search."""
        self.search("water", 1)

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """The words of the query as they are (`match` knows no operators), in the text and, doubled, in the title.

        An answer of some of the shards only is a failure.
        """
        should = [
            {"match": {self._title: {"query": query, "boost": TITLE_BOOST}}},
            {"match": {self._text: {"query": query}}},
        ]
        body = {
            "size": k,
            "query": {"bool": {"should": should}},
            "sort": [{"_score": {"order": "desc"}}],  # Elasticsearch's own order, but not Quickwit's
        }
        fields = {"allow_partial_search_results": "false"}
        answer = self._http.json("POST", _with(self._url, fields), body=body, headers=self._headers)
        timed_out = answer.get("timed_out")
        if timed_out is not None and timed_out.value is not False:
            raise InfrastructureError(f"{answer.where}: timed_out, the hits are not complete")
        shards = answer.get("_shards")
        if shards is not None and (failed := shards.get("failed")) is not None and failed.value != 0:
            raise InfrastructureError(f"{answer.where}: {failed.value!r:.40} shards failed, the hits are not complete")
        return [self._hit(item) for item in answer["hits"]["hits"].items(k)]

    def _hit(self, item: Part) -> Hit:
        source = item["_source"]
        title = source.get(self._title)
        document_id = source[self._id] if self._id else item["_id"]
        document = Document(document_id.id(), "" if title is None else title.text(), source[self._text].text())
        # Quickwit gives the score as what it sorted by, and as nothing else.
        score = item.get("_score") or item["sort"].items(2)[0]
        return Hit(document, score.number(), "")


def _with(url: str, fields: dict[str, str]) -> str:
    return url + "?" + "&".join(f"{name}={value}" for name, value in fields.items())
