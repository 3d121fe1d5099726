"""Episodes of the curated-set task on a real index: replies, endings, limits and exact rewards."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.tasks.curated.environment import CuratedEnvironment
from jaxsearchrl.tasks.curated.replies import top_hit

CUT = MalformedCall('{"name": "finish", "argu', "The call is not complete JSON.")


def search(query, **more):
    return ToolCall("bm25_search", {"query": query, **more})


def curate(*ids):
    return ToolCall("curate", {"document_ids": list(ids)})


def read(document_id):
    return ToolCall("read_document", {"document_id": document_id})


def say(*calls, **more):
    return AssistantTurn(calls=calls, **more)


FINISH = ToolCall("finish", {})


def step(environment, *calls):
    """The replies of one turn, read as JSON."""
    messages, _ = environment.step(say(*calls))
    return [json.loads(message.content) for message in messages]


def test_reset_states_the_limits_and_the_query(make_environment):
    system, user = make_environment(max_turns=17, max_curated=9, max_tool_calls=33).reset()
    assert (system.role, user.role) == ("system", "user")
    assert all(words in system.content for words in ("17 turns", "33 tool calls", "at most 9 documents"))
    assert user.content == "Which moons has Mars?\nHow far does an owl turn its head?"


def test_results_are_the_published_json(make_environment):
    environment = make_environment(search_default_k=1)
    [found] = step(environment, search("moons of mars"))
    [hit] = found.pop("results")
    assert hit.pop("score") > 0
    assert hit == {
        "document_id": "mars",
        "title": "Mars",
        "snippet": "Mars has two moons, Phobos and Deimos. A year lasts 687 days.",
    }
    assert found.pop("search_state").items() >= {"encountered_candidates": 1, "curated_count": 0}.items()
    assert found == {"turn": "1 of 40", "query": "moons of mars", "candidate_count": 1, "count": 1}

    [grepped] = step(environment, ToolCall("grep_corpus", {"pattern": "DEGREES|acorns", "k": "5"}))
    assert [hit["document_id"] for hit in grepped["results"]] == ["owl", "oak"]
    assert set(grepped["search_state"]) == {"encountered_candidates", "next_step", "curated_count"}
    assert grepped["search_state"]["encountered_candidates"] == 3
    [sensitive] = step(environment, ToolCall("grep_corpus", {"pattern": "DEGREES", "case_sensitive": True}))
    assert sensitive["results"] == []

    assert step(environment, read("owl")) == [
        {
            "turn": "4 of 40",
            "document_id": "owl",
            "title": "Owls",
            "text": "Owls hunt at night. An owl turns its head by 270 degrees.",
            "truncated": False,
        }
    ]
    assert step(environment, curate("owl", "oak", "tea", "owl"), curate("owl", "mars")) == [
        {
            "turn": "5 of 40",
            "added": ["owl", "oak"],
            "curated_count": 2,
            "curated_ids": ["owl", "oak"],
            "invalid_document_ids": ["tea"],
            "message": "Only ids that a search result has shown can be curated.",
        },
        {"added": ["mars"], "curated_count": 3, "curated_ids": ["owl", "oak", "mars"], "already_curated": ["owl"]},
    ]
    assert step(environment, ToolCall("drop_curated", {"document_ids": ["oak", "salt"]}), FINISH) == [
        {
            "turn": "6 of 40",
            "removed": ["oak"],
            "curated_count": 2,
            "curated_ids": ["owl", "mars"],
            "not_curated": ["salt"],
        },
        {"accepted": True, "curated_count": 2, "curated_ids": ["owl", "mars"]},
    ]
    assert (environment.stop_reason, environment.score().reward) == ("finish", 1.0)


def test_compact_results_are_short_lines(make_environment):
    environment = make_environment(compact_results=True, max_turns=9, search_default_k=1)

    def texts(*calls):
        return [message.content for message in environment.step(say(*calls))[0]]

    assert texts(search("phobos"), search("owl head"), search("unheard")) == [
        "turn 1 of 9\nmars | Mars | Mars has two moons, Phobos and Deimos. A year lasts 687 days.",
        "owl | Owls | Owls hunt at night. An owl turns its head by 270 degrees.",
        "nothing found",
    ]
    assert texts(read("owl"), read("none"))[0].startswith("turn 2 of 9\nOwls\nOwls hunt at night.")
    assert texts(curate("mars", "owl"), curate("owl", "tea")) == [
        "turn 3 of 9\ncurated 2: mars, owl",
        "curated 0\nalready curated 1: owl\nrefused, no search has shown 1: tea",
    ]
    assert texts(ToolCall("drop_curated", {"document_ids": ["owl", "tea"]}), ToolCall("search", {}), FINISH) == [
        "turn 4 of 9\ndropped 1: owl\nnot curated 1: tea",
        "error: There is no tool 'search'. The tools are: bm25_search, grep_corpus, read_document, curate, "
        "drop_curated, finish.",
        "finished 1: mars",
    ]


@pytest.fixture
def environment_of_ids(tmp_path, task):
    """An environment whose corpus has documents of these ids; document n is found by the word `word{n}`."""

    def make(*ids):
        path = tmp_path / "corpus.jsonl"
        rows = [{"id": i, "title": "T", "text": f"word{n} all"} for n, i in enumerate(ids)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        index = open_or_build(path)
        environment = CuratedEnvironment(task, index, index, CuratedConfig(compact_results=True), lambda text: 1)
        environment.reset()
        return environment

    return make


PLAIN_IDS = ["7ab", "with space", "a/b|c,d", "é", "漢 字", 'say "x"', "error", "turn 1 of 40"]
ODD_IDS = ["a  b", " a", "b ", "tab\tid", "n\nl", "x | y", "x |", "a, b", "a,", '"q"', '"', "{3F25-04E0}", "error: 5"]
ODD_IDS += ["\u2028", "\x04", "\x85", "\u00a0x", "z\u200bero"]


@pytest.mark.parametrize("document_id", [*PLAIN_IDS, *ODD_IDS])
def test_an_id_can_be_curated_as_a_short_result_shows_it(environment_of_ids, document_id):
    environment = environment_of_ids(document_id)
    (first, second), _ = environment.step(say(search("word0"), search("word0", k=1)))
    assert first.content.splitlines() == ["turn 1 of 40", second.content]
    assert top_hit(first.content) == top_hit(second.content) == document_id
    shown = second.content.removesuffix(" | T | word0 all")
    assert (shown == document_id) == (document_id in PLAIN_IDS)
    # what the model writes: the id between quotation marks, or the string as it stands
    written = shown if shown.startswith('"') else json.dumps(shown)
    [message], _ = environment.step(say(ToolCall("curate", json.loads(f'{{"document_ids": [{written}]}}'))))
    assert message.content.endswith(f"curated 1: {shown}")
    assert environment.last_step()["curated"] == [document_id]


def test_an_id_that_a_tokenizer_composed_is_found(environment_of_ids):
    """Qwen's tokenizer writes NFC: the model cannot say "e", "combining acute" otherwise than as one letter."""
    decomposed, composed = "cafe\u0301", "caf\u00e9"
    environment = environment_of_ids(decomposed)
    environment.step(say(curate(composed)))
    assert environment.last_step()["calls"][0]["outcome"] == "refused"  # not shown yet
    environment.step(say(search("word0"), read(composed), curate(composed, decomposed)))
    assert [call["outcome"] for call in environment.last_step()["calls"]] == ["found", "read", "curated"]
    assert environment.last_step()["curated"] == [decomposed]
    environment.step(say(ToolCall("drop_curated", {"document_ids": [composed]})))
    assert environment.last_step()["curated"] == []


def test_an_id_that_was_shown_is_meant_as_it_is_written(environment_of_ids):
    environment = environment_of_ids("cafe\u0301", "caf\u00e9", "o\u0323\u0302", "\u1ecd\u0302")
    environment.step(say(search("all"), curate("caf\u00e9")))
    assert environment.last_step()["curated"] == ["caf\u00e9"]
    environment.step(say(curate("\u1ed9")))  # two that were shown could be meant
    assert environment.last_step()["calls"][0]["outcome"] == "refused"


FOUND = say(search("phobos deimos", k=1), search("owl head degrees", k=1))


@pytest.mark.parametrize(
    ("turns", "options", "reward", "outcome", "reason"),
    [
        # one fact of two by one document: P = 1, R = 1/2, F4 = 17/2 / (16 + 1/2)
        ([FOUND, say(curate("mars"), FINISH)], {}, 8.5 / 16.5, "partial", "finish"),
        ([FOUND, say(curate("mars", "owl"), FINISH)], {}, 1.0, "complete", "finish"),
        ([FOUND, say(FINISH)], {}, -0.2, "empty", "finish"),
        ([FOUND, say(curate("mars"), ToolCall("drop_curated", {"document_ids": "mars"}))], {}, -0.2, "empty", ""),
        ([say(search("oak", k=1)), say(curate("oak"), FINISH)], {}, 0.0, "none_relevant", "finish"),
        # gold ids that were never shown
        ([say(curate("mars", "owl"), FINISH)], {}, -0.2, "empty", "finish"),
        # curating a gold id inside the arguments of an unknown tool, or by a cut call
        ([FOUND, say(ToolCall("Curate", {"document_ids": ["mars"]}), FINISH)], {}, -0.2, "empty", "finish"),
        ([FOUND, say(MalformedCall('{"name": "curate", "document_ids": ["mars"', "cut"))], {}, -0.2, "empty", ""),
        # what comes after finish, in its own turn, does not count
        ([FOUND, say(FINISH, curate("mars", "owl"))], {}, -0.2, "empty", "finish"),
        ([FOUND, say(curate("mars"), FINISH, curate("owl"))], {}, 8.5 / 16.5, "partial", "finish"),
        # a malformed call beside good ones: observed, and priced once
        ([FOUND, say(CUT, curate("mars", "owl"), CUT, FINISH)], {"format_penalty": 0.1}, 0.9, "complete", "finish"),
        ([FOUND, say(CUT, FINISH)], {"format_penalty": 0.1}, -0.2, "empty", "finish"),
        # calls that were not in the format's own form: carried out, and priced once
        (
            [replace(FOUND, off_form_calls=1), replace(say(curate("mars", "owl"), FINISH), off_form_calls=1)],
            {"format_penalty": 0.1},
            0.9,
            "complete",
            "finish",
        ),
        (
            [FOUND, say(curate("mars")), say(curate("owl"), CUT)],
            {"malformed_call": "end"},
            -0.2,
            "malformed",
            "malformed",
        ),
        # a turn of talk
        ([FOUND, say(curate("mars", "owl")), say(text="done")], {}, 1.0, "complete", ""),
        ([FOUND, say(curate("mars", "owl")), say(text="done")], {"no_call": "end"}, 1.0, "complete", "no_call"),
        ([say(text="I would search")], {"no_call": "end"}, -0.2, "empty", "no_call"),
        # caps
        ([FOUND, say(curate("mars", "owl"))], {"max_turns": 2, "unfinished_penalty": 0.1}, 0.9, "complete", "turns"),
        ([FOUND, say(curate("mars"), curate("owl"))], {"max_tool_calls": 3}, 8.5 / 16.5, "partial", "tool_calls"),
        ([FOUND, say(curate("mars", "owl"))], {"max_curated": 1}, 8.5 / 16.5, "partial", ""),
        ([FOUND, say(curate("mars", "owl"), FINISH)], {"max_turns": 2, "max_tool_calls": 4}, 1.0, "complete", "finish"),
        # refused ids, twenty useless searches, documents
        (
            [FOUND, say(curate("mars", "owl", "tea", "no")), say(FINISH)],
            {"invalid_curation_penalty": 0.02},
            0.96,
            "complete",
            "finish",
        ),
        ([FOUND, say(*[search("mars", k=1)] * 20), say(curate("mars", "owl"), FINISH)], {}, 1.0, "complete", "finish"),
        (
            [FOUND, say(curate("mars"), FINISH)],
            {"document_cost": 0.02, "discovery_bonus": 0.2},
            8.5 / 16.5 - 0.02 + 0.2,
            "partial",
            "finish",
        ),
    ],
)
def test_misbehaviour_has_an_exact_price(make_environment, turns, options, reward, outcome, reason):
    environment = make_environment(**options)
    for turn in turns:
        messages, done = environment.step(turn)
        assert len(messages) == min(len(turn.calls), 9) or not turn.calls
    result = environment.score()
    assert (result.reward, result.outcome) == (pytest.approx(reward), outcome)
    assert (environment.stop_reason, done) == (reason, bool(reason))


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (ToolCall("bm25-search", {"query": "mars"}), "unknown_tool", "bm25_search, grep_corpus, read_document, curate"),
        (ToolCall("", {}), "unknown_tool", "There is no tool ''"),
        (ToolCall("x" * 9999 + "\ud800", {}), "unknown_tool", "The tools are"),
        (ToolCall("bm25_search", {}), "invalid_arguments", "'query' is missing; use bm25_search(query: string"),
        (search(""), "invalid_arguments", "is empty"),
        (search("   "), "invalid_arguments", "is empty"),
        (search("!!! ?"), "invalid_arguments", "no searchable words"),
        (ToolCall("grep_corpus", {"pattern": "(?=x)"}), "bad_pattern", ""),
        (ToolCall("grep_corpus", {"pattern": "("}), "bad_pattern", ""),
        (read("mars"), "document_not_encountered", "a search result has shown"),
        (read("none"), "unknown_document", "No document has this id"),
        (curate(), "invalid_arguments", "is an empty list"),
        (CUT, "malformed_call", "The call is not complete JSON."),
    ],
)
def test_a_mistake_is_an_observation_and_the_episode_goes_on(make_environment, call, code, words):
    environment = make_environment()
    messages, done = environment.step(say(call))
    [body] = [json.loads(message.content) for message in messages]
    assert not done
    assert body["error"] == code
    assert words in body["message"]
    assert len(body["message"]) < 300
    record = environment.last_step()["calls"][0]
    assert (record["ok"], record["outcome"].split(":")[0]) == (False, code)
    assert environment.last_step()["encountered"] == environment.last_step()["curated"] == []


def test_half_a_surrogate_pair_goes_no_further(make_environment):
    """JSON lets a model write one; neither a tokenizer nor a file takes it."""
    for compact in (False, True):
        environment = make_environment(compact_results=compact)
        calls = (ToolCall("\ud800", {}), curate("\udfff"), MalformedCall("\ud800", "unreadable: \ud800"))
        messages, _ = environment.step(say(*calls, search("mars \ud800")))
        for message in messages:
            assert (message.name + message.content).encode()


def test_odd_queries_find_nothing_or_something_but_never_raise(make_environment):
    environment = make_environment()
    bodies = step(environment, search("the of and"), search('AT&T "10-K" (2019) AND mars:'), search("mars " * 2000))
    bodies += step(environment, search("\ud800 mars"), search("mars", k=10**9), search("fish days:"))
    assert all("results" in body for body in bodies)
    found = [{result["document_id"] for result in bodies[i]["results"]} for i in (1, 2, 3, 4)]
    assert all("mars" in ids for ids in found)
    assert len(bodies[2]["query"]) == 220


def test_calls_are_answered_in_their_order(make_environment):
    environment = make_environment()
    calls = (search("owl"), CUT, curate("owl"), ToolCall("nothing", {}), search("tea"), FINISH, search("oak"))
    messages, done = environment.step(say(*calls))
    assert done
    assert [message.role for message in messages] == ["tool"] * 7
    assert [message.name for message in messages] == [
        "bm25_search",
        "",
        "curate",
        "",
        "bm25_search",
        "finish",
        "bm25_search",
    ]
    bodies = [json.loads(message.content) for message in messages]
    assert (bodies[0]["query"], bodies[4]["query"], bodies[6]["error"]) == ("owl", "tea", "not_executed")
    assert [record["outcome"] for record in environment.last_step()["calls"]] == [
        "found",
        'malformed_call: {"name": "finish", "argu',
        "curated",
        "unknown_tool",
        "found",
        "finished",
        "not_executed",
    ]


def test_the_step_record_is_json_with_ranks(make_environment):
    environment = make_environment()
    environment.step(say(search("moons", k=2), read("mars"), search("owl")))
    record = environment.last_step()
    assert json.loads(json.dumps(record)) == record
    assert record["calls"][1] == {
        "name": "read_document",
        "arguments": {"document_id": "mars"},
        "ok": True,
        "outcome": "read",
    }
    assert [(hit["rank"], hit["call"]) for hit in record["encountered"]] == [(1, 0), (2, 0), (1, 2)]
    assert {hit["id"] for hit in record["encountered"]} == {"moon", "mars", "owl"}
    environment.step(say(curate("owl", "mars")))
    assert environment.last_step()["curated"] == ["owl", "mars"]
    assert environment.last_step()["encountered"] == []


def test_a_turn_without_a_call_is_reminded_costs_a_turn_and_is_counted(make_environment):
    environment = make_environment(max_turns=2)
    [reminder], done = environment.step(say(text="let me think", truncated=True))
    assert (reminder.role, done) == ("user", False)
    assert json.loads(reminder.content)["turn"] == "1 of 2"
    assert "cut off at the token limit" in reminder.content
    [reminder], done = environment.step(say())
    assert (done, environment.stop_reason) == (True, "turns")
    assert "cut off" not in reminder.content
    assert environment.score().parts["reminders"] == 2
    assert environment.last_step() == {"calls": [], "encountered": [], "curated": []}


def test_an_ended_episode_takes_no_turn(make_environment):
    environment = make_environment()
    environment.step(say(FINISH))
    with pytest.raises(RuntimeError, match='over \\("finish"\\)'):
        environment.step(say(search("mars")))
    environment.reset()
    assert environment.stop_reason == ""
    assert environment.score().parts["turns"] == 0


def test_a_malformed_call_that_ends_the_episode_leaves_its_turn_undone(make_environment):
    environment = make_environment(malformed_call="end")
    bodies = step(environment, search("mars"), CUT, FINISH)
    assert [body["error"] for body in bodies] == ["not_executed", "malformed_call", "not_executed"]
    assert environment.stop_reason == "malformed"
    assert environment.score().parts["candidate_recall"] == 0


def test_tool_calls_beyond_the_limit_are_not_executed(make_environment):
    environment = make_environment(max_tool_calls=2)
    bodies = step(environment, search("mars"), CUT, search("owl"), FINISH)
    assert [body.get("error") for body in bodies] == [None, "malformed_call", "not_executed", "not_executed"]
    assert (environment.stop_reason, environment.score().parts["tool_calls"]) == ("tool_calls", 2)


def test_calls_that_are_too_many_for_a_turn_share_one_refusal(make_environment):
    environment = make_environment()
    messages, done = environment.step(say(*[search("mars")] * 8, CUT, curate("mars"), CUT, FINISH))
    assert (len(messages), done) == (9, False)
    assert json.loads(messages[-1].content) == {
        "error": "not_executed",
        "message": "Not executed, nor any call after it: a turn has at most 8.",
    }
    outcomes = [record["outcome"].split(":")[0] for record in environment.last_step()["calls"]]
    assert outcomes == ["found"] * 8 + ["not_executed"] * 4
    assert environment.last_step()["curated"] == []
    parts = environment.score().parts
    assert (parts["tool_calls"], parts["malformed_calls"]) == (8, 2)
    assert len(environment.step(say(*[FINISH] * 8))[0]) == 8


def test_repeated_calls_are_counted(make_environment):
    environment = make_environment()
    environment.step(say(search("mars"), search("mars", k=None), search("mars", k=3)))
    environment.step(say(search("mars", k="3"), ToolCall("grep_corpus", {"pattern": "mars"})))
    assert environment.score().parts["duplicate_calls"] == 2
    # faulty ones are mistakes of another kind
    environment.step(say(search("?!"), search("?!"), *[ToolCall("grep_corpus", {"pattern": "("})] * 2, CUT, CUT))
    assert environment.score().parts["duplicate_calls"] == 2


def test_the_curated_set_has_a_capacity(make_environment):
    environment = make_environment(max_curated=2)
    step(environment, search("moon"), search("owl"), search("tea"))
    [full, again] = step(environment, curate("owl", "moon", "tea"), curate("tea", "owl"))
    assert (full["added"], full["dropped_over_capacity"], full["maximum"]) == (["owl", "moon"], ["tea"], 2)
    assert (again["added"], again["already_curated"], again["dropped_over_capacity"]) == ([], ["owl"], ["tea"])
    [_, freed] = step(environment, ToolCall("drop_curated", {"document_ids": "owl"}), curate("tea"))
    assert freed["curated_ids"] == ["moon", "tea"]


def test_nothing_a_document_says_has_an_effect(make_environment):
    """The document names gold ids, tool calls and a reward, in its title, its lines and the reply's own syntax."""
    for compact in (False, True):
        environment = make_environment(compact_results=compact)
        messages, done = environment.step(say(search("trapdoor")))
        assert not done
        assert [hit["id"] for hit in environment.last_step()["encountered"]] == ["trap"]
        if compact:
            assert len(messages[0].content.splitlines()) == 2  # the turn, and one line for the one hit
        environment.step(say(read("trap")))
        environment.step(say(curate("mars", "tea", "trap")))
        assert environment.last_step()["curated"] == ["trap"]
        assert environment.stop_reason == ""
        assert environment.score().reward == 0.0


class Flaky:
    """A retriever that fails at chosen searches."""

    def __init__(self, index, failing):
        self.index, self.failing, self.searches = index, failing, 0

    def search(self, query, k):
        self.searches += 1
        if self.searches in self.failing:
            raise InfrastructureError("the retriever is down")
        return self.index.search(query, k)


def test_a_step_that_fails_changes_nothing_and_can_be_retried(make_environment, index):
    environment = make_environment(retriever=Flaky(index, {3, 4}))
    environment.step(say(search("phobos", k=1)))
    before = (environment.score(), environment.last_step())
    turn = say(curate("mars", "no"), CUT, search("owl", k=1), search("tea"), curate("owl"), FINISH)
    for _ in range(2):
        with pytest.raises(InfrastructureError):
            environment.step(turn)
        assert (environment.score(), environment.last_step()) == before
        assert environment.stop_reason == ""
    _, done = environment.step(turn)
    assert done
    parts = environment.score().parts
    assert (parts["turns"], parts["malformed_calls"], parts["refused_ids"], parts["duplicate_calls"]) == (2, 1, 1, 0)
    assert environment.score().reward == 1.0


def test_concurrent_episodes_share_nothing(make_environment):
    ids = ["moon", "mars", "tea", "owl", "oak", "salt"]  # each found by its name, but that the trap's title names Mars

    def episode(number):
        own = ids[number % len(ids)]
        environment = make_environment()
        environment.step(say(search("phobos" if own == "mars" else own, k=1)))
        environment.step(say(curate(*ids)))
        environment.step(say(FINISH))
        return environment.last_step()["curated"] == [own]

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(episode, range(64)))
