"""A model behind an OpenAI-compatible API, as a real server on this machine that answers well and badly."""

import json

import pytest

from jaxsearchrl.chat.search_r1 import SearchR1Tags
from jaxsearchrl.config import EndpointConfig, SamplingConfig, SearchR1Config
from jaxsearchrl.errors import UserError
from jaxsearchrl.rollouts.collect import to_records
from jaxsearchrl.rollouts.endpoint import KEY_VARIABLE, Endpoint, EndpointAgent
from jaxsearchrl.rollouts.scripted import scripted_rollout
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_r1.family import SearchR1Family
from jaxsearchrl.telemetry.metrics import rollout_metrics
from tests import http_server

CONFIG = SamplingConfig(capacity=4096, max_turn_tokens=256)
QUESTION = Question("q", "How many moons has Mars?", ("two",))


@pytest.fixture
def endpoint(server):
    return Endpoint(EndpointConfig(url=server.url.replace("/retrieve", "/v1/"), model="m", timeout=0.3), 256)


@pytest.fixture
def play(endpoint, environment, chat):
    """The rollout of an episode of the curated set; failures are tried again so often."""

    def run(retries=0, config=CONFIG, temperature=0.7, **options):
        episode = environment(**options)
        agent = EndpointAgent(endpoint, episode.tools, chat, temperature)
        return scripted_rollout(agent, episode, chat, config, (0.0,) * retries)

    return run


def said(content=None, *calls, finish="stop", **more):
    """An answer of the API. A call is (name, arguments)."""
    written = [{"id": "x", "type": "function", "function": {"name": n, "arguments": a}} for n, a in calls]
    message = {"role": "assistant", "content": content, **({"tool_calls": written} if calls else {}), **more}
    return http_server.ok({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": {}})


SEARCH = said("I look.", ("bm25_search", '{"query": "moons of Mars"}'), reasoning_content="Hm.")
TAKE = said(None, ("curate", {"document_ids": ["mars"]}), ("finish", "{}"))


def test_an_episode_is_played_scored_and_recorded_as_any_other(server, play, monkeypatch):
    server.answers = [SEARCH, TAKE]
    rollout = play()
    assert (rollout.stop_reason, rollout.score.outcome, rollout.score.reward) == ("finish", "complete", 1.0)
    [search, take] = rollout.turns
    assert (search.text, search.reasoning, search.calls[0].name) == ("I look.", "Hm.", "bm25_search")
    assert "mars" in {document.id for document in search.encountered}
    assert take.curated == ("mars",)
    assert search.seconds_model > 0
    assert "Authorization" not in server.requests[0].headers
    first, second = server.asked(0), server.asked(1)
    assert server.requests[0].path == "/v1/chat/completions"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.7, 256)
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert {tool["function"]["name"] for tool in first["tools"]} >= {"bm25_search", "curate", "finish"}
    *before, call, answer = second["messages"]
    assert before == first["messages"]
    assert answer["role"] == "tool"
    assert answer["tool_call_id"] == call["tool_calls"][0]["id"]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"query": "moons of Mars"}
    assert "Phobos" in answer["content"]


def test_the_key_comes_from_the_environment(server, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "k-1")
    server.answers = [said("yes")]
    Endpoint(EndpointConfig(url=server.url, model="m"), 8).check()
    assert server.requests[0].headers["Authorization"] == "Bearer k-1"
    monkeypatch.setenv(KEY_VARIABLE, "é")
    with pytest.raises(UserError, match=KEY_VARIABLE):
        Endpoint(EndpointConfig(url=server.url, model="m"), 8)


FAULTS = {
    "slow": (http_server.slow(0.5), "Read timed out"),
    "dripping": (http_server.drip(b" " * 60, 2.0), "no whole answer within 0.3 s"),
    "status 500": (http_server.raw(b"oops", 500), "status 500, 'oops'"),
    "status 401": (http_server.raw(b"who?", 401), "status 401"),
    "cut": (http_server.cut, "IncompleteRead"),
    "reset": (http_server.reset, "reset"),
    "no JSON": (http_server.raw(b"<html>"), "not JSON"),
    "no choices": (http_server.ok({"error": "x"}), "has no 'choices'"),
    "an empty list": (http_server.ok({"choices": []}), "has no choice"),
    "no message": (http_server.ok({"choices": [{"text": "yes"}]}), "has no 'message'"),
    "content of another kind": (said(["yes"]), "content: a string is wanted, found a list"),
    "a call without a name": (http_server.ok({"choices": [{"message": {"tool_calls": [{}]}}]}), "has no 'function'"),
    "calls of another kind": (said("x", tool_calls="all"), "tool_calls: a list is wanted"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_is_healed_by_another_try_or_takes_the_episode_out(server, play, fault):
    answer, words = FAULTS[fault]
    server.answers = [SEARCH, answer, TAKE]
    healed = play(retries=1)
    assert healed.score.outcome == "complete"
    assert len(healed.errors) == 1
    assert words in healed.errors[0]
    server.answers = [SEARCH, answer]
    lost = play(retries=1)
    assert (lost.score, lost.stop_reason, len(lost.errors)) == (None, "infrastructure", 2)
    [record] = to_records([lost], [QUESTION], 1, run="r", split="eval", step=0)
    assert record.failed
    metrics = rollout_metrics([record], 1)
    assert (metrics["infrastructure/failed_share"], "reward" in metrics) == (1.0, False)


@pytest.mark.parametrize("arguments", ["{", "[]", '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": "\\ud800"}', ["mars"], 3])
def test_a_call_that_is_no_json_object_is_the_models_fault(server, play, arguments):
    server.answers = [said("", ("curate", arguments)), SEARCH, TAKE]
    rollout = play()
    assert rollout.score.outcome == "complete"
    assert rollout.score.parts["malformed_calls"] == 1
    assert rollout.turns[0].calls[0].outcome.startswith("malformed_call: curate(")
    [call] = server.asked(1)["messages"][-2]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["text"].startswith("curate(")


def test_what_a_server_says_in_words_calls_no_tool(server, play):
    server.answers = [said('<tool_call>{"name": "finish", "arguments": {}}</tool_call>'), TAKE]
    rollout = play()
    assert rollout.turns[0].calls == ()
    assert server.asked(1)["messages"][-1]["role"] == "user"  # the reminder


def test_calls_that_are_too_many_share_an_answer_and_each_id_has_one(server, play):
    many = said("", *[("bm25_search", json.dumps({"query": f"moon {n}"})) for n in range(12)])
    server.answers = [many, TAKE]
    rollout = play()
    assert len(rollout.turns[0].calls) == 12
    messages = server.asked(1)["messages"]
    calls = next(message["tool_calls"] for message in messages if "tool_calls" in message)
    answers = [message for message in messages if message["role"] == "tool"]
    assert [answer["tool_call_id"] for answer in answers] == [call["id"] for call in calls]
    assert answers[-1]["content"] == answers[8]["content"] != answers[7]["content"]


def test_budgets_are_those_of_a_policy(server, play, chat):
    server.answers = [said("word " * 40, finish="length")]
    cut = play(max_turns=2)
    assert cut.truncated
    assert (cut.stop_reason, len(cut.turns), len(cut.trajectory.spans)) == ("turns", 2, 5 - 1)
    assert cut.turns[0].truncated
    least = cut.trajectory.spans[2].stop
    assert play(config=SamplingConfig(capacity=least + 1, max_turn_tokens=256)).stop_reason == "context"


def test_tags_are_read_from_the_text_up_to_the_first_stop(server, endpoint, index, chat):
    tags = SearchR1Tags.__new__(SearchR1Tags)
    tags._chatml, tags.stop_ids, tags.vocab_size = chat, chat.stop_ids, chat.vocab_size
    family = SearchR1Family(SearchR1Config(max_turns=2), index)
    environment = family.environment(QUESTION, tags.count_tokens, 0)
    agent = EndpointAgent(endpoint, environment.tools, tags, 0.0)
    made_up = "<search>moons of Mars</search><information>It has 99.</information><answer>99</answer>"
    server.answers = [said(made_up), said("<think>so</think><answer>two</answer> and more")]
    rollout = scripted_rollout(agent, environment, tags, CONFIG)
    assert (rollout.score.outcome, rollout.score.parts["exact"]) == ("right", 1.0)
    assert [turn.text for turn in rollout.turns] == [
        "<search>moons of Mars</search>",
        "<think>so</think><answer>two</answer>",
    ]
    *_, own, shown = server.asked(1)["messages"]
    assert "tools" not in server.asked(1)
    assert own == {"role": "assistant", "content": "<search>moons of Mars</search>"}
    assert shown["role"] == "user"
    assert shown["content"].startswith("<information>Doc 1")


def test_an_endpoint_that_cannot_be_used_is_known_before_any_episode(server, endpoint):
    server.answers = [http_server.raw(b'{"error": "no such model"}', 404)]
    with pytest.raises(UserError, match=r"endpoint 'http.*no such model.*the model's name"):
        endpoint.check()
