"""The scripted expert and the baseline, on a real index, and the loop that plays an agent without tokens."""

from dataclasses import replace

import pytest

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.rollouts.play import play
from jaxsearchrl.tasks.curated.baselines import curate_top_k
from jaxsearchrl.tasks.curated.replies import top_hit
from jaxsearchrl.tasks.curated.rule import RuleAgent

SEARCHES = AssistantTurn(
    calls=(
        ToolCall("bm25_search", {"query": "Which moons has Mars?"}),
        ToolCall("bm25_search", {"query": "How far does an owl turn its head?"}),
    )
)


@pytest.mark.parametrize(
    "options", [{}, {"compact_results": True}, {"compact_results": True, "max_observation_tokens": 100}]
)
def test_the_rule_searches_each_line_and_curates_the_top_hits(make_environment, options):
    environment = make_environment(**options)
    turns = [turn for turn, _ in play(RuleAgent(), environment)]
    assert turns == [
        SEARCHES,
        AssistantTurn(calls=(ToolCall("curate", {"document_ids": ["mars", "owl"]}), ToolCall("finish", {}))),
    ]
    assert (environment.stop_reason, environment.score().outcome, environment.score().reward) == (
        "finish",
        "complete",
        1.0,
    )


def test_the_rule_does_not_depend_on_gold(make_environment, task):
    wrong = replace(task, facts=(replace(task.facts[0], chunk_ids=("tea",)),))
    for one, other in zip(
        play(RuleAgent(), make_environment()), play(RuleAgent(), make_environment(wrong)), strict=True
    ):
        assert one == other


def test_the_rule_finishes_when_it_finds_nothing(make_environment, task):
    environment = make_environment(replace(task, query="unheard\n \nunseen"))
    searches, finish = (turn.calls for turn, _ in play(RuleAgent(), environment))
    assert [call.arguments["query"] for call in searches] == ["unheard", "unseen"]
    assert finish == (ToolCall("finish", {}),)
    assert environment.score().outcome == "empty"


def test_the_rule_makes_no_more_calls_than_a_turn_may_have(make_environment, task):
    environment = make_environment(replace(task, query="mars\n" * 20))
    searches, _ = (turn.calls for turn, _ in play(RuleAgent(), environment))
    assert len(searches) == 8


@pytest.mark.parametrize(
    ("text", "top"),
    [
        ("turn 1 of 4\n7ab | Title | a | b\n8cd | x | y\n2 of 9 shown", "7ab"),
        ("turn 1 of 4\nnothing found", None),
        ("error: There is no tool 'a | b'. The tools are: finish.", None),
        ('turn 1 of 4\n"a | b" | Title | x', "a | b"),
        ('{"results": [{"document_id": "a | b"}]}', "a | b"),
        ('{"results": []}', None),
        ('{"error": "no_room"}', None),
        ('{"results": [{"document_id": "x | y', None),
    ],
)
def test_the_top_hit_is_read_from_either_form(text, top):
    assert top_hit(text) == top


class Chatter:
    """Never calls a tool."""

    def act(self, messages):
        return AssistantTurn(text=f"{len(messages)} messages so far")


def test_the_loop_ends_when_the_environment_does(make_environment):
    environment = make_environment(max_turns=3)
    steps = play(Chatter(), environment)
    assert [turn.text for turn, _ in steps] == ["2 messages so far", "4 messages so far", "6 messages so far"]
    assert environment.stop_reason == "turns"
    again = play(RuleAgent(), environment)
    assert len(again) == 2


def test_the_loop_hands_the_agent_its_own_turns(make_environment):
    seen = []

    class Watching(RuleAgent):
        def act(self, messages):
            seen.append([(message.role, message.turn) for message in messages])
            return super().act(messages)

    play(Watching(), make_environment())
    assert seen[1] == [("system", None), ("user", None), ("assistant", SEARCHES), ("tool", None), ("tool", None)]


def test_the_baseline_curates_the_best_hits_of_the_raw_question(index, task):
    """The owl and Mars lead; P = R = 1 at k = 2, and P = 2/3 at k = 3: F4 = 17 · 2/3 / (16 · 2/3 + 1)."""
    assert curate_top_k(task, index, 2, CuratedConfig(unfinished_penalty=0.5)).reward == 1.0
    third = curate_top_k(task, index, 3, CuratedConfig())
    assert third.reward == pytest.approx(34 / 35)
    assert (third.outcome, third.parts["curated_count"], third.parts["candidate_recall"]) == ("complete", 3, 1)


def test_the_baseline_keeps_to_the_capacity(index, task):
    for k in (0, 31):
        with pytest.raises(ValueError, match=r"must lie in 1\.\.30"):
            curate_top_k(task, index, k, CuratedConfig())
