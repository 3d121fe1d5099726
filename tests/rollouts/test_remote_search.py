"""Episodes whose search is a server elsewhere that fails in every way: what is healed, lost and counted."""

from itertools import chain, repeat

import pytest

from jaxsearchrl.config import SearchToolsConfig
from jaxsearchrl.learning.advantages import group_advantages
from jaxsearchrl.rollouts.collect import to_records
from jaxsearchrl.search.remote.http import Http
from jaxsearchrl.search.remote.retriever import RemoteRetriever
from jaxsearchrl.search.remote.search_r1 import SearchR1Engine
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_tools.family import SearchToolsFamily
from jaxsearchrl.telemetry.alarms import alarms
from jaxsearchrl.telemetry.metrics import rollout_metrics
from tests import http_server

QUESTION = Question("q", "How many moons has Mars?", ("2",))
GOOD = http_server.ok({"result": [[{"document": {"id": "mars", "contents": "Mars has 2 moons."}, "score": 1.0}]]})
FAULTS = {
    "slow": (http_server.slow(0.4), "Read timed out"),
    "dripping": (http_server.drip(b" " * 60, 2.0), "no whole answer within 0.2 s"),
    "status 500": (http_server.raw(b"oops", 500), "status 500, 'oops'"),
    "status 429": (http_server.raw(b"", 429, Retry_After="0"), "status 429"),
    "cut": (http_server.cut, "IncompleteRead"),
    "broken JSON": (http_server.raw(b'{"result": [['), "not JSON"),
    "no list": (http_server.ok({"result": []}), "0 lists for 1 query"),
    "two lists": (http_server.ok({"result": [[], []]}), "has 2 items"),
    "a missing field": (http_server.ok({"result": [[{"score": 1.0}]]}), "has no 'document'"),
}


@pytest.fixture
def family(server, counters):
    engine = SearchR1Engine(Http(0.2, 1, counters), server.url)
    return SearchToolsFamily(SearchToolsConfig(), RemoteRetriever(engine, "", counters))


@pytest.fixture
def episodes(family, chat, scripted, play, call):
    """Plays so many tries of the question: a search, then an answer; the last try answers at once, and wrongly."""

    def run(tries, **options):
        environments = [family.environment(QUESTION, chat.count_tokens, 0) for _ in range(tries)]
        turns = {uid: [call("search", query="moons of Mars"), "Answer: 2"] for uid in range(tries - 1)}
        sampler = scripted(turns | {tries - 1: ["Answer: 3"]})
        return play(environments, sampler, retry_seconds=(0.0,), **options)

    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_costs_nothing(server, counters, episodes, fault):
    bad, says = FAULTS[fault]
    server.answers = [bad, GOOD]
    healed, _ = episodes(2)
    assert (healed.score.reward, healed.stop_reason) == (1.0, "finish")
    assert "Mars has 2 moons." in healed.turns[0].observation
    [error] = healed.errors
    assert f": POST {server.url}" in error
    assert says in error
    metrics = counters.take()
    assert (metrics["search/success"], metrics["search/errors"], metrics["search/success_rate"]) == (1, 1, 0.5)
    assert metrics["search/rate_limited"] == (fault == "status 429")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_fault_that_stays_takes_the_episode_out(server, counters, episodes, fault, deterministic):
    bad, says = FAULTS[fault]
    server.answers = [bad]
    lost, other = episodes(2, deterministic=deterministic)
    assert (lost.score, lost.stop_reason, len(lost.errors)) == (None, "infrastructure", 2)
    assert all(says in error for error in lost.errors)
    assert not any(turn.observation for turn in lost.turns)  # neither an error nor an empty result was shown
    assert (other.score.reward, other.errors) == (0.0, [])
    metrics = counters.take()
    assert (metrics["search/success"], metrics["search/errors"]) == (0, 2)
    assert "search/latency" not in metrics


def test_what_failed_is_in_neither_baseline_nor_loss(server, counters, episodes):
    """Of four tries two search well, one is lost, one answers wrongly: rewards 1, 1, -, 0 and not 1, 1, 0, 0."""
    server.answers = list(chain([GOOD, GOOD], repeat(FAULTS["status 500"][0], 2)))
    rollouts = episodes(4, tool_threads=1)
    records = to_records(rollouts, [QUESTION], 4, run="r", split="train", step=1)
    assert [record.reward for record in records] == [1.0, 1.0, None, 0.0]
    metrics = rollout_metrics(records, 4) | counters.take()
    assert (metrics["infrastructure/failed"], metrics["infrastructure/errors"], metrics["episodes"]) == (1, 2, 4)
    assert metrics["reward"] == pytest.approx(2 / 3)
    assert (metrics["search/success"], metrics["search/errors"], metrics["search/success_rate"]) == (2, 2, 0.5)
    assert "search engine" in [alarm.name for alarm in alarms([metrics] * 4)]
    scored = [rollout.score is not None for rollout in rollouts]
    rewards = [rollout.score.reward if rollout.score else 0.0 for rollout in rollouts]
    advantages = group_advantages(rewards, [0] * 4, scored)
    assert advantages.advantages.tolist() == pytest.approx([1 / 3, 1 / 3, 0, -2 / 3])
    assert advantages.count == 3
    assert counters.take() == {}
