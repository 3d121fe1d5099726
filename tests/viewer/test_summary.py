"""What lists show of a rollout, by hand."""

import json

import pytest

from jaxsearchrl.records import CallRecord, TurnRecord, to_json_line
from jaxsearchrl.viewer.groups import groups_of, part_names, pass_rate
from jaxsearchrl.viewer.summary import Strip, kind_of, summarise
from tests.viewer.conftest import episode, step_of


def summary_of(record, number=1):
    return summarise(json.loads(to_json_line(record)), number)


def test_the_strip_has_the_tokens_of_each_turn_and_of_its_answer():
    summary = summary_of(episode())
    assert summary.strips == (Strip(("search",), 3, 1), Strip(("curate", "finish"), 2, 2))
    assert (summary.prompt_tokens, summary.tokens) == (4, 12)
    assert summary.documents == ("007", "099")
    assert summary.flags == ()


@pytest.mark.parametrize(
    ("name", "ok", "outcome", "kind"),
    [
        ("bm25_search", True, "found", "search"),
        ("search", True, "nothing_found", "search"),
        ("grep_corpus", True, "found", "grep"),
        ("grep_corpus", False, "bad_pattern", "invalid"),
        ("read_document", True, "read", "read"),
        ("drop_curated", True, "dropped", "drop"),
        ("curate", False, "over_capacity", "curate"),
        ("curate", False, "refused", "invalid"),
        ("", False, "malformed_call: x", "invalid"),
        ("answer", True, "answered", "finish"),
        ("turn 1", False, "unknown_tool", "invalid"),
        ("dance", True, "", "text"),
    ],
)
def test_kinds_of_calls(name, ok, outcome, kind):
    assert kind_of({"name": name, "ok": ok, "outcome": outcome}) == kind


def test_flags_say_what_is_out_of_order():
    bad = TurnRecord(calls=(CallRecord("", {}, False, "malformed_call: x"),) * 2, tokens=(4, 7), truncated=True)
    assert summary_of(episode(turns=(bad,))).flags == ("2 failed calls", "cut by the token limit")
    assert summary_of(episode(reward=None, infrastructure_errors=("down",))).flags == ("lost to the infrastructure",)
    assert summary_of(episode(outcome="empty")).flags == ("nothing handed over",)


@pytest.mark.parametrize("value", ["x", None, True, -1, 0.5, 2**31, 10**400, [1]])
def test_what_is_no_count_makes_no_summary(value):
    for change in (
        lambda data: data.update(group=value),
        lambda data: data["spans"][-1].update(stop=value),
        lambda data: data["turns"][0].update(tokens=[4, value]),
    ):
        data = json.loads(to_json_line(episode()))
        change(data)
        with pytest.raises((TypeError, ValueError)):
            summarise(data, 1)


@pytest.mark.parametrize("value", ["x", True, float("nan"), float("inf"), 10**400, {}])
def test_what_is_no_number_makes_no_summary(value):
    for key in ("reward", "advantage", "seconds"):
        data = json.loads(to_json_line(episode())) | {key: value}
        with pytest.raises((TypeError, ValueError)):
            summarise(data, 1)


def test_an_agent_without_tokens_has_a_strip_by_its_letters():
    turn = TurnRecord(text="x" * 40, observation="y" * 8)
    assert summary_of(episode(tokens=(), spans=(), sample_logprobs=(), turns=(turn,))).strips == (
        Strip(("text",), 11, 2),
    )


def test_groups_and_their_traits():
    first, second = groups_of([summary_of(record) for record in step_of(1)])
    assert [len(first.tries), len(second.tries)] == [3, 3]
    assert first.mean == pytest.approx(1.3 / 3)
    assert (first.best, first.spread) == (1.0, 1.2)
    assert first.traits == ["mixed", "flagged", "solved"]
    assert second.traits == ["all-fail", "no-signal"]
    assert pass_rate(first.tries) == pytest.approx(1 / 3)


def test_parts_that_are_0_everywhere_or_shown_elsewhere_have_no_column():
    assert part_names([summary_of(episode())]) == ["precision", "recall"]
