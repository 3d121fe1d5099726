"""What became of each fact, turn by turn."""

from dataclasses import asdict, replace

from jaxsearchrl.records import CallRecord, EncounteredRecord, TurnRecord
from jaxsearchrl.viewer.facts import Fact, facts_of, states_after
from tests.viewer.conftest import GOLD, episode


def turn(seen=(), curated=(), **changes):
    found = tuple(EncounteredRecord(name, rank) for rank, name in enumerate(seen, start=1))
    return asdict(replace(TurnRecord(encountered=found, curated=tuple(curated)), **changes))


def test_a_fact_is_seen_curated_and_dropped():
    facts = facts_of(GOLD)
    turns = [turn(), turn(["099", "015"]), turn(["021"], ["015"]), turn([], []), turn(["015"], []), turn([], ["007"])]
    assert states_after(facts, turns) == [
        ("never", "never"),
        ("seen", "never"),
        ("curated", "seen"),
        ("dropped", "seen"),
        ("dropped", "seen"),
        ("curated", "seen"),
    ]


def test_any_document_of_a_fact_keeps_it():
    facts = (Fact("f", ("a", "b")),)
    assert states_after(facts, [turn(["a", "b"], ["a"]), turn([], ["b"])]) == [("curated",), ("curated",)]


def test_an_answer_is_seen_in_what_was_shown_and_handed_over_in_what_was_written():
    facts = facts_of({"answers": ["Ada Byron"]})
    shown = turn(observation="by ADA BYRON")
    asked = turn(calls=(CallRecord("search", {"query": "Ada Byron"}),))
    answered = turn(calls=(CallRecord("answer", {"text": "ada byron"}),))
    assert states_after(facts, [asked, shown, answered]) == [("never",), ("seen",), ("curated",)]


def test_another_gold_has_no_facts():
    for gold in ({}, {"facts": ["a"]}, {"facts": [{"chunk_ids": "ab"}]}, {"facts": 1}, {"answers": "a"}):
        assert facts_of(gold) == ()
    assert facts_of({"answers": ["", 7, " "]})[0].answers == ("7",)  # no answer stands in every text
    assert states_after((), [asdict(t) for t in episode().turns]) == [(), ()]
