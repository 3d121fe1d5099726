"""Each kind of failure, from an episode that was really played."""

import pytest

from jaxsearchrl.config import CuratedConfig, SearchR1Config, SearchToolsConfig
from jaxsearchrl.evaluation.failures import FAILURES, failure, failures
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.records import RolloutRecord

CURATED = CuratedConfig(max_turns=3, max_observation_tokens=8192)
STRICT = CuratedConfig(max_turns=3, max_observation_tokens=8192, malformed_call="end", no_call="end")
TAGS = SearchR1Config(max_turns=2, search_k=1, max_observation_tokens=8192)


@pytest.mark.parametrize(
    ("word", "options", "script"),
    [
        (None, CURATED, lambda c: [[c.search("moons Mars"), c.search("owl")], [c.curate("mars", "owl"), c.finish]]),
        ("format", CURATED, lambda c: [[c.search("moons Mars")], [c.finish]]),
        ("format", STRICT, lambda c: [[c.search("moons Mars")], [c.broken]]),
        ("format", STRICT, lambda c: [[c.search("moons Mars"), c.curate("mars")], [c.broken]]),
        ("format", STRICT, lambda c: [AssistantTurn("I do not know.")]),
        ("over-searching", CURATED, lambda c: [[c.search("Mars"), c.search("owl")]] * 3),
        ("over-searching", CURATED, lambda c: [[c.search("Mars"), c.search("owl")]]),  # the context ended it
        ("budget", CURATED, lambda c: [[c.search("Mars")]] * 3),
        ("bad query", CURATED, lambda c: [[c.search("acorns"), c.curate("oak"), c.finish]]),
        ("bad query", CURATED, lambda c: [[c.search("Mars"), c.curate("mars"), c.finish]]),
        ("ignored evidence", CURATED, lambda c: [[c.search("Mars"), c.search("owl"), c.curate("mars"), c.finish]]),
        (None, TAGS, lambda c: [c.tag("search", "Mars"), c.tag("answer", "Phobos and Deimos")]),
        ("unsupported answer", TAGS, lambda c: [c.tag("answer", "Phobos")]),
        ("unsupported answer", TAGS, lambda c: [c.tag("search", "Mars"), c.tag("answer", "Europa")]),
        ("bad query", TAGS, lambda c: [c.tag("search", "acorns"), c.tag("answer", "an oak")]),
        ("ignored evidence", TAGS, lambda c: [c.tag("search", "Mars"), c.tag("answer", "two moons")]),
        ("budget", TAGS, lambda c: [c.tag("search", "acorns")] * 3),
        ("over-searching", TAGS, lambda c: [c.tag("search", "Mars")] * 3),
    ],
)
def test_an_episode_has_the_word_for_what_it_did(play, calls, word, options, script):
    assert failure(play(options, *script(calls))) == word


def test_documents_in_the_prompt_are_evidence_too(play, calls):
    assert failure(play(SearchR1Config(play="rag", search_k=1), calls.tag("answer", "two"))) == "ignored evidence"


def test_by_tool_calls_the_answer_line_counts(play):
    options, search = SearchToolsConfig(search_k=1), [ToolCall("search", {"query": "Mars"})]
    assert failure(play(options, search, AssistantTurn("Answer: Phobos and Deimos"))) is None
    assert failure(play(options, search, AssistantTurn("Answer: Europa"))) == "unsupported answer"
    assert failure(play(options, search, AssistantTurn("Answer: two moons"))) == "ignored evidence"
    assert failure(play(options, search, AssistantTurn("Phobos"))) == "format"
    assert failure(play(options, search, AssistantTurn("Phobos"), truncated=True)) == "over-searching"
    assert failure(play(options, AssistantTurn("Phobos"), truncated=True)) == "budget"


def test_counts_leave_out_what_the_infrastructure_failed(play, calls):
    good = play(CURATED, [calls.search("Mars"), calls.search("owl")], [calls.curate("mars", "owl"), calls.finish])
    lost = RolloutRecord("r", "eval", 0, "q", 0, 0, 0, "?")
    assert failures([good, lost]) == {"solved": 1, **dict.fromkeys(FAILURES, 0)}


def test_a_family_without_searches_has_no_such_failures():
    sum_ = RolloutRecord("r", "eval", 0, "q", 0, 0, 0, "?", reward=0.0, score_parts={"exact": 0.0}, outcome="wrong")
    assert failures([sum_]) == {}
