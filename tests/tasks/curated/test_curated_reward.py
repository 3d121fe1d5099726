"""The reward by hand-worked numbers and by what must not change it."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.tasks.curated.data import Fact
from jaxsearchrl.tasks.curated.reward import Counters, f_beta, precision, recall, score

# b supports two facts; the second fact is the answer
FACTS = (Fact("one", ("a", "b")), Fact("two", ("b", "c"), True), Fact("three", ("d",)))
ALL_TERMS = CuratedConfig(
    beta=1.0,
    format_penalty=0.1,
    invalid_curation_penalty=0.02,
    unfinished_penalty=0.1,
    discovery_bonus=0.2,
    document_cost=0.02,
)


def finished(**counters):
    return Counters(stop_reason="finish", **counters)


def test_the_published_example():
    """All facts found among four times as many documents: F4 = 17 · .25 / (16 · .25 + 1)."""
    result = score(["a", "x", "y", "z"], [], (Fact("f", ("a",)),), CuratedConfig(), finished())
    assert result.reward == pytest.approx(0.85)
    assert result.parts["f_beta"] == pytest.approx(0.85)
    assert result.parts["f1"] == pytest.approx(0.40)
    assert (result.parts["precision"], result.parts["recall"]) == (0.25, 1.0)
    assert result.outcome == "complete"


@pytest.mark.parametrize(
    ("curated", "p", "r", "answer", "outcome"),
    [
        ([], 0, 0, 0, "empty"),
        (["x"], 0, 0, 0, "none_relevant"),
        (["a"], 1, 1 / 3, 0, "partial"),
        (["b"], 1, 2 / 3, 1, "partial"),
        (["a", "b", "c"], 1, 2 / 3, 1, "partial"),
        (["b", "b", "x"], 1 / 2, 2 / 3, 1, "partial"),
        (["d", "b", "x", "y"], 2 / 4, 1, 1, "complete"),
    ],
)
def test_precision_counts_documents_and_recall_counts_facts(curated, p, r, answer, outcome):
    result = score(curated, [], FACTS, CuratedConfig(), finished())
    assert result.parts["precision"] == pytest.approx(p)
    assert result.parts["recall"] == pytest.approx(r)
    assert result.parts["final_answer_recall"] == answer
    assert result.parts["curated_count"] == len(set(curated))
    assert result.parts["empty"] == (not curated)
    assert result.outcome == outcome
    assert (precision(curated, FACTS), recall(curated, FACTS)) == pytest.approx((p, r))


def test_every_correction_by_hand():
    """P = 1/2, R = 2/3, F1 = 4/7; two documents; two of three facts were seen."""
    counters = Counters(turns=3, tool_calls=9, malformed_calls=2, refused_ids=3, stop_reason="turns")
    result = score(["b", "x"], ["a", "b", "x"], FACTS, ALL_TERMS, counters)
    corrections = {
        "format_penalty": -0.1,  # once, though two calls were malformed
        "discovery_bonus": 0.2 * 2 / 3,
        "document_cost": -0.04,
        "invalid_curation_penalty": -0.06,
        "unfinished_penalty": -0.1,
    }
    assert {name: result.parts[name] for name in corrections} == pytest.approx(corrections)
    assert result.parts["candidate_recall"] == pytest.approx(2 / 3)
    assert result.reward == pytest.approx(4 / 7 + sum(corrections.values()))


def test_an_empty_set_is_flat_whatever_else_happened():
    counters = Counters(malformed_calls=4, refused_ids=9, stop_reason="tool_calls")
    result = score([], ["a", "b", "d"], FACTS, dataclasses.replace(ALL_TERMS, empty_penalty=-0.3), counters)
    assert result.reward == -0.3
    assert result.outcome == "empty"
    assert result.parts["candidate_recall"] == 1
    assert result.parts["format_penalty"] == result.parts["discovery_bonus"] == 0


def test_an_ending_by_a_malformed_call_is_worth_the_empty_penalty():
    result = score(["b", "d"], ["b", "d"], FACTS, ALL_TERMS, Counters(malformed_calls=1, stop_reason="malformed"))
    assert (result.reward, result.outcome, result.parts["recall"]) == (-0.2, "malformed", 1.0)
    first = score(["a"], ["a"], FACTS, CuratedConfig(), Counters(malformed_calls=1, stop_reason="malformed"))
    assert (first.reward, first.parts["empty"]) == (-0.2, 0)
    assert first.parts["f_beta"] == pytest.approx(17 / 3 / (16 + 1 / 3))


def test_the_reward_ends_at_minus_one():
    result = score(["x"], [], FACTS, CuratedConfig(invalid_curation_penalty=0.5), finished(refused_ids=40))
    assert result.reward == -1
    assert result.parts["invalid_curation_penalty"] == -20


def test_unfinished_means_anything_but_finish():
    options = CuratedConfig(unfinished_penalty=0.25)
    assert score(["b", "d"], [], FACTS, options, finished()).reward == 1
    for reason in ("", "turns", "tool_calls", "no_call"):
        assert score(["b", "d"], [], FACTS, options, Counters(stop_reason=reason)).reward == 0.75


def test_no_final_answer_fact_gives_no_final_answer_recall():
    """Not 0: in a mean over tasks that would be a failure."""
    assert "final_answer_recall" not in score(["a"], [], (Fact("f", ("a",)),), CuratedConfig(), finished()).parts


def test_precision_and_recall_given_finish_are_of_episodes_that_finished():
    """In the means of a step only those count that have the part."""
    parts = score(["b", "x"], [], FACTS, CuratedConfig(), finished()).parts
    assert (parts["precision_given_finish"], parts["recall_given_finish"]) == (1 / 2, pytest.approx(2 / 3))
    for reason in ("", "turns", "tool_calls", "no_call", "malformed"):
        parts = score(["b", "x"], [], FACTS, CuratedConfig(), Counters(stop_reason=reason)).parts
        assert not {"precision_given_finish", "recall_given_finish"} & parts.keys()


def test_useless_calls_are_worth_nothing():
    few, many = finished(tool_calls=1), finished(tool_calls=10, duplicate_calls=9)
    assert score(["a"], [], FACTS, CuratedConfig(), few).reward == score(["a"], [], FACTS, CuratedConfig(), many).reward


SHARES = st.integers(0, 30).map(lambda n: n / 30)


@given(p=SHARES, r=SHARES, beta=st.floats(0.1, 8))
def test_f_beta_lies_between_precision_and_recall(p, r, beta):
    f = f_beta(p, r, beta)
    if p * r == 0:
        assert f == 0
    else:
        assert min(p, r) - 1e-9 <= f <= max(p, r) + 1e-9


IDS = st.lists(st.sampled_from("abcdxyz"), max_size=8)


@given(curated=IDS, encountered=IDS, refused=st.integers(0, 5), malformed=st.integers(0, 3), order=st.randoms())
def test_order_and_repeats_do_not_matter_and_the_parts_add_up(curated, encountered, refused, malformed, order):
    counters = finished(refused_ids=refused, malformed_calls=malformed)
    result = score(curated, encountered, FACTS, ALL_TERMS, counters)
    shuffled = [*curated, *curated[:2]]
    order.shuffle(shuffled)
    doubled = tuple(Fact(f.fact, f.chunk_ids * 2, f.is_final_answer) for f in reversed(FACTS))
    again = score(shuffled, encountered * 2, doubled, ALL_TERMS, counters)
    assert (again.reward, again.outcome) == (pytest.approx(result.reward), result.outcome)
    if curated:
        names = ("f_beta", "format_penalty", "discovery_bonus", "document_cost", "invalid_curation_penalty")
        total = sum(result.parts[name] for name in names) + result.parts["unfinished_penalty"]
        assert result.reward == pytest.approx(max(-1.0, total))
