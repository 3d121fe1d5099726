"""Families that search by an engine elsewhere, as a configuration names it."""

import pytest

from jaxsearchrl.config import RetrieverConfig, SearchR1Config, SearchToolsConfig
from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.tasks.families import open_family
from tests import http_server

ANSWER = http_server.ok({"result": [[{"document": {"id": "brell", "contents": '"Brell"\nGlass.'}, "score": 1.0}]]})


@pytest.fixture
def server(server):
    server.answers = [ANSWER]
    return server


@pytest.mark.parametrize("kind", [SearchR1Config, SearchToolsConfig])
def test_a_family_searches_where_its_configuration_says(kind, server, question):
    counters = SearchCounters()
    options = kind(play="rag", search_k=2, retriever=RetrieverConfig(kind="search_r1", url=server.url, tries=1))
    family = open_family(options, counters)
    assert server.asked()["topk"] == 1  # the check before a run
    assert family.fingerprints["corpus"] == "search_r1 /retrieve title text "
    assert counters.take() == {}
    messages = family.environment(question, len, 0).reset()
    assert "Glass." in messages[-1].content
    assert server.asked() == {"queries": [question.query], "topk": 2, "return_scores": True}
    assert counters.take()["search/success"] == 1
    server.answers = [http_server.raw(b"", 500)]
    with pytest.raises(InfrastructureError):
        family.environment(question, len, 0).reset()
    with pytest.raises(UserError, match=r"task\.retriever cannot be searched"):
        open_family(options, counters)
