"""An observation never exceeds its tokens, says what was left out, and only what it shows was encountered."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxsearchrl.config import MAX_CALLS_PER_TURN
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.tasks.curated import replies


def search(query, **more):
    return ToolCall("bm25_search", {"query": query, **more})


def turn(*calls):
    return AssistantTurn(calls=calls)


EVERYTHING = "moon mars tea owl oak salt endless notice"


def test_hits_are_cut_at_document_ends(make_environment, count_tokens):
    environment = make_environment(max_observation_tokens=480)
    [message], _ = environment.step(turn(search(EVERYTHING)))
    body = json.loads(message.content)
    assert 1 < body["count"] < body["candidate_count"] == 8
    assert body["shown"] == f"{body['count']} of 8"
    assert all("truncated" not in hit for hit in body["results"])
    shown = [hit["document_id"] for hit in body["results"]]
    assert [hit["id"] for hit in environment.last_step()["encountered"]] == shown
    assert body["search_state"]["encountered_candidates"] == len(shown)
    hidden = {"moon", "mars", "tea", "owl", "oak", "salt"} - set(shown)
    environment.step(turn(ToolCall("curate", {"document_ids": [*shown, *hidden]})))
    assert environment.last_step()["curated"] == shown
    # one hit more would not have fitted
    more = make_environment(max_observation_tokens=2048)
    [full], _ = more.step(turn(search(EVERYTHING, k=len(shown) + 1)))
    assert count_tokens(full.content) > 480


def test_compact_hits_say_how_many_are_shown(make_environment, count_tokens):
    environment = make_environment(max_observation_tokens=70, compact_results=True)
    [message], _ = environment.step(turn(search(EVERYTHING)))
    lines = message.content.splitlines()
    assert lines[0] == "turn 1 of 40"
    assert lines[-1] == f"{len(lines) - 2} of 8 shown"
    assert [line.split(" | ")[0] for line in lines[1:-1]] == [h["id"] for h in environment.last_step()["encountered"]]


def test_one_over_long_hit_is_cut_and_says_so(make_environment, count_tokens):
    environment = make_environment(max_observation_tokens=40, compact_results=True)
    [message], _ = environment.step(turn(search("endless")))
    assert message.content.startswith("turn 1 of 40\nlong | Endless | xxxx")
    assert message.content.endswith("x (truncated)")
    assert 36 < count_tokens(message.content) <= 40
    assert [hit["id"] for hit in environment.last_step()["encountered"]] == ["long"]


def test_a_long_document_without_spaces_is_cut_and_says_so(make_environment, count_tokens):
    environment = make_environment(max_observation_tokens=300)
    environment.step(turn(search("endless")))
    [message], _ = environment.step(turn(ToolCall("read_document", {"document_id": "long"})))
    body = json.loads(message.content)
    assert body["truncated"] is True
    assert 290 < count_tokens(message.content) <= 300
    assert body["text"] == "x" * len(body["text"])


def test_reading_ends_at_read_max_chars(make_environment):
    environment = make_environment(read_max_chars=100)
    environment.step(turn(search("endless"), search("tea")))
    messages, _ = environment.step(turn(*(ToolCall("read_document", {"document_id": i}) for i in ("long", "tea"))))
    long, tea = (json.loads(message.content) for message in messages)
    assert (len(long["text"]), long["truncated"]) == (100, True)
    assert (len(tea["text"]), tea["truncated"]) == (63, False)


def test_snippets_end_at_snippet_chars(make_environment):
    [message], _ = make_environment(snippet_chars=10).step(turn(search("tea", k=1)))
    assert len(json.loads(message.content)["results"][0]["snippet"]) == 10


def test_parallel_searches_share_the_room(make_environment):
    environment = make_environment(max_observation_tokens=1000)
    environment.step(turn(*[search(EVERYTHING)] * 3))
    calls = {hit["call"] for hit in environment.last_step()["encountered"]}
    assert calls == {0, 1, 2}


def test_what_a_short_reply_leaves_goes_to_the_next_call(make_environment):
    environment = make_environment(max_observation_tokens=300)
    alone, _ = make_environment(max_observation_tokens=150).step(turn(search(EVERYTHING)))
    messages, _ = environment.step(turn(ToolCall("x", {}), search(EVERYTHING)))
    assert json.loads(messages[1].content)["count"] > json.loads(alone[0].content)["count"]


def test_a_search_without_room_says_so_and_shows_nothing(make_environment):
    environment = make_environment(max_observation_tokens=460)
    messages, _ = environment.step(turn(*[search(EVERYTHING)] * 6))
    bodies = [json.loads(message.content) for message in messages]
    assert bodies[0]["error"] == "no_room"
    assert all(body.get("error") == "no_room" or body["shown"] == "0 of 8" for body in bodies)
    assert environment.last_step()["encountered"] == []


def test_an_endless_title_is_cut_like_a_snippet():
    hit = Hit(Document("d", "t" * 9000, ""), 1.0, "s" * 9000)
    text, shown = replies.fit(replies.found("q", [hit], 220, lambda ids: {}), replies.as_text, 900, len)
    assert (text, shown) == (f"d | {'t' * 220} | {'s' * 220}", ("d",))
    text, shown = replies.fit(replies.found("q", [hit], 220, lambda ids: {}), replies.as_text, 40, len)
    assert (text, shown) == ("d | tttttttttt | ssssssssss (truncated)", ("d",))


CALLS = st.sampled_from(
    [
        search(EVERYTHING),
        search("endless"),
        search("word " * 300 + "tea"),
        ToolCall("read_document", {"document_id": "long"}),
        ToolCall("read_document", {"document_id": "owl"}),
        ToolCall("grep_corpus", {"pattern": "."}),
        ToolCall("curate", {"document_ids": ["owl", "mars", "tea", "y" * 4000]}),
        ToolCall("drop_curated", {"document_ids": ["owl"]}),
        ToolCall("nothing", {}),
        MalformedCall("{", "Not JSON. " * 60),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    turns=st.lists(st.lists(CALLS, max_size=12), min_size=1, max_size=4),
    budget=st.integers(1, 500),
    compact=st.booleans(),
)
def test_no_observation_exceeds_its_budget(make_environment, count_tokens, turns, budget, compact):
    environment = make_environment(max_observation_tokens=budget, compact_results=compact)
    seen = set()
    for calls in turns:
        messages, _ = environment.step(turn(*calls))
        assert len(messages) == max(1, min(len(calls), MAX_CALLS_PER_TURN + 1))
        assert sum(count_tokens(message.content) for message in messages) <= budget
        step = environment.last_step()
        for hit in step["encountered"]:
            assert hit["id"] in messages[hit["call"]].content
            seen.add(hit["id"])
        assert set(step["curated"]) <= seen


@pytest.mark.parametrize("write", [replies.as_json, replies.as_text])
def test_the_room_is_used_to_the_last_character(write):
    """With one token a character, cutting by one character fills the room exactly."""
    long = Document("d", "T", "y" * 900)
    whole = write(replies.document(long, 4000, 220).body(0, 4000))
    for room in range(len(whole) - 400, len(whole)):
        text, _ = replies.fit(replies.document(long, 4000, 220), write, room, len)
        assert len(text) == room or len(whole) - room < 12
        assert "truncated" in text
