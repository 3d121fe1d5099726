"""Fan-out search, hidden repeats and the tokens that are left: exact answers, records and rewards under each option."""

import json

import pytest

from jaxsearchrl.messages import AssistantTurn, ToolCall

EVERYTHING = "moon mars tea owl oak salt endless notice"


def search(query, **more):
    return ToolCall("bm25_search", {"query": query, **more})


def fan_out(*queries, **more):
    return ToolCall("fan_out_search", {"queries": list(queries), **more})


def grep(pattern, **more):
    return ToolCall("grep_corpus", {"pattern": pattern, **more})


def step(environment, *calls, **more):
    messages, _ = environment.step(AssistantTurn(calls=calls, **more))
    return [json.loads(message.content) for message in messages]


def lines(environment, *calls, **more):
    messages, _ = environment.step(AssistantTurn(calls=calls, **more))
    return [message.content.splitlines() for message in messages]


def ids(body):
    return [result["document_id"] for result in body["results"]]


def test_fan_out_is_a_tool_only_where_it_is_asked_for(make_environment):
    names = [spec.name for spec in make_environment().tools]
    assert names == ["bm25_search", "grep_corpus", "read_document", "curate", "drop_curated", "finish"]
    environment = make_environment(fan_out_queries=3)
    assert [spec.name for spec in environment.tools] == [names[0], "fan_out_search", *names[1:]]
    assert environment.tools[1].parameters["properties"]["queries"]["maxItems"] == 3
    assert make_environment(fan_out_queries=3, compact_results=True).tools[1].description == "several searches"
    assert step(make_environment(), fan_out("mars"))[0]["error"] == "unknown_tool"


def test_a_fan_out_shows_the_best_of_each_query_first(make_environment):
    environment = make_environment(fan_out_queries=3)
    alone = [ids(body) for body in step(make_environment(), search("orbits phobos"), search("leaves degrees"))]
    assert [len(found) for found in alone] == [2, 2]  # moon and mars, tea and owl, each in some order
    [body] = step(environment, fan_out("orbits phobos", "leaves degrees", "unheard"))
    assert ids(body) == [alone[0][0], alone[1][0], alone[0][1], alone[1][1]]
    assert body["queries"] == ["orbits phobos", "leaves degrees", "unheard"]
    assert "query" not in body
    assert (body["candidate_count"], body["count"]) == (4, 4)
    assert environment.last_step()["calls"][0]["outcome"] == "found"
    assert [hit["rank"] for hit in environment.last_step()["encountered"]] == [1, 2, 3, 4]
    parts = environment.score().parts
    assert (parts["tool_calls"], parts["candidate_recall"]) == (1, 1.0)


def test_a_document_that_two_queries_find_is_listed_once_at_its_best_place(make_environment):
    environment = make_environment(fan_out_queries=3)
    [body] = step(environment, fan_out("degrees", "phobos deimos degrees", "phobos", k=2))
    assert ids(body) == ["owl", "mars"]
    assert step(environment, fan_out("tea", "oak", k=1))[0]["count"] == 2  # k is each query's


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (fan_out("a", "b", "c", "d"), "'queries' has 4 items, at most 3 are allowed"),
        (fan_out(), "'queries' is an empty list"),
        (fan_out("mars", "?!"), "no searchable words"),
        (ToolCall("fan_out_search", {"query": "mars"}), "use fan_out_search(queries: list of strings, k?: integer)"),
    ],
)
def test_a_faulty_fan_out_names_the_right_form(make_environment, call, words):
    environment = make_environment(fan_out_queries=3)
    [body] = step(environment, call)
    assert body["error"] == "invalid_arguments"
    assert words in body["message"]
    assert environment.last_step()["encountered"] == []
    # a single query may stand for a list of one
    assert ids(step(environment, ToolCall("fan_out_search", {"queries": "phobos"}))[0]) == ["mars"]


def test_a_fan_out_is_rewarded_as_the_searches_that_it_is(make_environment):
    scores = []
    for calls in ([search("phobos", k=1), search("270", k=1)], [fan_out("phobos", "270", k=1)]):
        environment = make_environment(fan_out_queries=2, discovery_bonus=0.2, document_cost=0.02)
        step(environment, *calls)
        step(environment, ToolCall("curate", {"document_ids": ["mars", "owl"]}), ToolCall("finish", {}))
        scores.append(environment.score().reward)
    assert scores == pytest.approx([1.0 + 0.2 - 0.04] * 2)


def test_hidden_repeats_make_room_for_the_next_hits(make_environment):
    plain = make_environment()
    ranking = ids(step(plain, search(EVERYTHING, k=6))[0])
    assert ids(step(plain, search(EVERYTHING, k=2))[0]) == ranking[:2]
    environment = make_environment(hide_seen=True)
    pages = [step(environment, search(EVERYTHING, k=2))[0] for _ in range(3)]
    assert [ids(page) for page in pages] == [ranking[:2], ranking[2:4], ranking[4:6]]
    assert [page.get("seen_left_out", 0) for page in pages] == [0, 2, 2]
    assert environment.score().parts["duplicate_calls"] == 2


def test_a_search_shows_k_hits_also_where_nothing_of_it_is_hidden(make_environment):
    environment = make_environment(hide_seen=True)
    step(environment, search("acorns leaves"))
    [body] = step(environment, search("orbits phobos degrees", k=2))
    assert (body["count"], "seen_left_out" in body) == (2, False)


def test_hidden_repeats_count_within_a_turn_and_across_tools(make_environment):
    environment = make_environment(hide_seen=True, fan_out_queries=2)
    first, second, third = step(
        environment, search("phobos"), grep("Phobos|degrees"), fan_out("degrees", "orbits", k=1)
    )
    assert (ids(first), ids(second)) == (["mars"], ["owl"])
    assert (first.get("seen_left_out"), second["seen_left_out"]) == (None, 1)
    assert (ids(third), third["seen_left_out"]) == (["moon"], 1)
    # what is hidden can still be read and curated
    read, curated = step(
        environment,
        ToolCall("read_document", {"document_id": "mars"}),
        ToolCall("curate", {"document_ids": ["mars", "owl"]}),
    )
    assert (read["title"], curated["added"]) == ("Mars", ["mars", "owl"])
    assert environment.score().reward == 1.0


def test_a_search_with_nothing_new_says_so(make_environment):
    environment = make_environment(hide_seen=True)
    step(environment, search("phobos"))
    [again, none] = step(environment, search("phobos"), search("unheard"))
    assert (again["results"], again["seen_left_out"], "seen_left_out" in none) == ([], 1, False)
    assert [call["outcome"] for call in environment.last_step()["calls"]] == ["nothing_new", "nothing_found"]
    compact = make_environment(hide_seen=True, compact_results=True, fan_out_queries=2)
    lines(compact, search("phobos"))
    answers = lines(compact, search("phobos"), search("unheard"), fan_out("phobos", "270"))
    assert answers == [
        ["turn 2 of 40", "nothing new", "1 shown before left out"],
        ["nothing found"],
        ["owl | Owls | Owls hunt at night. An owl turns its head by 270 degrees.", "1 shown before left out"],
    ]


def test_what_did_not_fit_is_not_hidden(make_environment):
    """Only what an observation shows was seen."""
    environment = make_environment(hide_seen=True, compact_results=True, max_observation_tokens=70)
    seen = []
    for _ in range(8):
        lines(environment, search(EVERYTHING))
        seen += [hit["id"] for hit in environment.last_step()["encountered"]]
    assert len(seen) == len(set(seen)) == 8


def test_the_tokens_left_are_shown_where_they_are_known_and_asked_for(make_environment):
    environment = make_environment(show_tokens_left=True)
    first, second = step(environment, search("phobos"), search("tea"), tokens_left=4321)
    assert list(first)[:2] == ["turn", "tokens_left"]
    assert (first["tokens_left"], "tokens_left" in second) == (4321, False)
    assert "tokens_left" not in step(environment, search("oak"))[0]  # an agent without tokens
    [reminder], _ = environment.step(AssistantTurn(text="hm", tokens_left=0))
    assert json.loads(reminder.content)["tokens_left"] == 0
    assert "tokens_left" not in step(make_environment(), search("oak"), tokens_left=5)[0]
    compact = make_environment(show_tokens_left=True, compact_results=True)
    assert lines(compact, search("unheard"), tokens_left=77) == [["turn 1 of 40, 77 tokens left", "nothing found"]]
