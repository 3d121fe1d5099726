"""Where facts are lost, and recall@k by hand, over a real index."""

import pytest

from jaxsearchrl.config import CuratedConfig, GSM8KConfig, SearchR1Config
from jaxsearchrl.evaluation.retrieval import missed, recall_at

CURATED = CuratedConfig(max_turns=3, max_observation_tokens=8192)
NARROW = CuratedConfig(max_turns=3, max_observation_tokens=80, compact_results=True)
TAGS = SearchR1Config(search_k=1)


@pytest.mark.parametrize(
    ("script", "places"),
    [
        (lambda c: [[c.search("Mars"), c.search("owl"), c.curate("mars", "owl"), c.finish]], {}),
        (
            lambda c: [[c.search("Mars"), c.search("owl")], [c.curate("mars")], [c.drop("mars"), c.finish]],
            {"shown but not curated": 1, "curated then dropped": 1},
        ),
        (lambda c: [[c.search("acorns"), c.curate("oak"), c.finish]], {"never retrieved": 2}),
        (lambda c: [[c.search("moons", k=1)]], {"never retrieved": 2}),  # the other moons come first
    ],
)
def test_each_missed_fact_was_lost_in_one_place(play, calls, index, script, places):
    record = play(CURATED, *script(calls))
    assert missed([record], CURATED, index) == places


def test_what_the_observation_had_no_room_for_was_retrieved_but_not_shown(play, calls, index):
    record = play(NARROW, [calls.search("Phobos owl")])
    shown = {hit.id for hit in record.turns[0].encountered}
    assert len(shown) == 1
    assert shown <= {"mars", "owl"}
    assert missed([record], NARROW, index) == {"retrieved but not shown": 1, "shown but not curated": 1}
    assert missed([record], NARROW) == {"not shown": 1, "shown but not curated": 1}  # a record alone cannot tell


def test_an_answer_is_lost_in_the_same_places(play, calls, index):
    records = [
        play(TAGS, calls.tag("search", "Mars"), calls.tag("answer", "two")),
        play(TAGS, calls.tag("search", "acorns"), calls.tag("answer", "two")),
        play(TAGS, calls.tag("search", "Mars"), calls.tag("answer", "Phobos and Deimos")),
    ]
    assert missed(records, TAGS, index) == {"never retrieved": 1, "shown but not answered": 1}
    assert missed(records, GSM8KConfig(), index) == {}


def test_recall_of_queries_and_of_the_raw_question_by_hand(play, calls, index):
    record = play(CURATED, [calls.search("Phobos"), calls.search("owl"), calls.search("unheard")])
    found = recall_at(1, [record], CURATED, index)
    assert found is not None
    assert found.queries.mean == 1.0  # mars by the first, owl by the second
    best = index.search(record.query, 2)
    assert {hit.document.id for hit in best} == {"mars", "owl"}
    assert (found.question.mean, found.question_as_many.mean, found.change.mean) == (0.5, 1.0, 0.0)


def test_an_answers_recall_looks_into_the_documents(play, calls, index):
    records = [play(TAGS, calls.tag("search", "acorns"), calls.tag("answer", "two"))]
    found = recall_at(1, records, TAGS, index)
    assert found is not None
    assert (found.queries.mean, found.question.mean) == (0.0, 1.0)


def test_without_a_search_there_is_nothing_to_compare(play, calls, index):
    assert recall_at(1, [play(TAGS, calls.tag("answer", "two"))], TAGS, index) is None
    with pytest.raises(ValueError):
        recall_at(0, [], TAGS, index)
