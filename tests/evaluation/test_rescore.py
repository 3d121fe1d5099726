"""Rewards computed anew: the same under the run's own settings, and by hand under others."""

import math
from dataclasses import replace

import pytest

from jaxsearchrl.config import CuratedConfig, GSM8KConfig, SearchR1Config, SearchToolsConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.evaluation.rescore import rescore, reward_under
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.tasks.gsm8k.reward import score
from jaxsearchrl.tasks.questions import Question

CURATED = CuratedConfig(
    max_turns=3, max_observation_tokens=8192, format_penalty=0.1, unfinished_penalty=0.05, discovery_bonus=0.2
)


def episodes(play, calls, options):
    """Four tries of one group: both facts; one fact and a wrong document; one fact alone, unfinished; nothing."""
    c = calls
    return [
        play(options, [c.search("Mars"), c.search("owl"), c.curate("mars", "owl"), c.finish], attempt=0),
        play(options, [c.search("Mars"), c.search("oak"), c.curate("mars", "oak"), c.finish], attempt=1),
        play(options, [c.search("Mars"), c.curate("mars"), c.broken], attempt=2),
        play(options, [c.search("Mars"), c.finish], attempt=3),
    ]


def test_under_its_own_settings_a_record_has_its_own_reward(play, calls):
    for options in (CURATED, replace(CURATED, malformed_call="end"), CuratedConfig(document_cost=0.1)):
        for record in episodes(play, calls, options):
            assert reward_under(options, record) == record.reward
    tags = SearchR1Config(format_weight=0.1, match="cover")
    structured = SearchR1Config(format_reward="structured")
    answers = [[calls.tag("search", "Mars"), calls.tag("answer", text)] for text in ("Phobos and Deimos", "two")]
    for options in (tags, structured):
        for turns in [*answers, [calls.tag("search", "Mars")], [AssistantTurn("<answer> ? </answer> .")]]:
            record = play(options, *turns)
            assert reward_under(options, record) == record.reward
    tools, search = SearchToolsConfig(invalid_reward=-0.3), [ToolCall("search", {"query": "Mars"})]
    for text in ("Answer: Phobos and Deimos", "Answer: two", "two"):
        record = play(tools, search, AssistantTurn(text))
        assert reward_under(tools, record) == record.reward
    for text in ("<answer> 7 </answer>", "7", "none"):
        scored = score(Question("s", "3 + 4?", ("7",)), AssistantTurn(text), 0.2)
        record = RolloutRecord("r", "train", 1, "s", 0, 0, 0, "?", reward=scored.reward, score_parts=scored.parts)
        assert reward_under(GSM8KConfig(format_weight=0.2), record) == record.reward


def test_other_settings_by_hand(play, calls):
    both, mixed, alone, nothing = episodes(play, calls, CURATED)
    plain = CuratedConfig(beta=1.0, empty_penalty=-0.5)
    # F1: 1; P = R = 1/2: 0.5; P = 1, R = 1/2: 2/3; the flat penalty.
    rewards = [reward_under(plain, record) for record in (both, mixed, alone, nothing)]
    assert rewards == pytest.approx([1.0, 0.5, 2 / 3, -0.5])
    costly = replace(plain, document_cost=0.1, format_penalty=0.3, unfinished_penalty=0.2)
    assert reward_under(costly, mixed) == pytest.approx(0.5 - 0.2)
    assert reward_under(costly, alone) == pytest.approx(2 / 3 - 0.1 - 0.3 - 0.2)


def test_a_weight_that_falls_with_the_steps_is_that_of_the_records_own_step():
    options = GSM8KConfig(format_weight=0.4, format_steps=4)
    record = RolloutRecord(
        "r", "train", 4, "s", 0, 0, 0, "?", adapter=3, reward=0.1, score_parts={"exact": 0.0, "format": 1.0}
    )
    assert reward_under(options, record) == pytest.approx(0.1)  # 0.4 · (1 - 3/4)


def test_a_tied_group_that_separates_and_what_becomes_of_advantages(play, calls):
    # All one fact: a document alone (P 1) and two with a wrong one (P 1/2). Only recall counts for a large beta.
    c = calls
    sets = [["mars"], ["mars", "oak"], ["mars", "oak"], ["mars"]]
    blind, seeing = CuratedConfig(beta=1e9, max_observation_tokens=8192), CuratedConfig(beta=1.0)
    records = [
        play(blind, [c.search("Mars"), c.search("oak"), c.curate(*ids), c.finish], attempt=attempt)
        for attempt, ids in enumerate(sets)
    ]
    found = rescore(records, blind, seeing)
    assert (found.groups, found.tied_before, found.separated, found.tied) == (1, 1, (0,), ())
    # F1 2/3 and 1/2: advantages ±1/12, before 0.
    assert found.moved == pytest.approx(1 / 12)
    assert (found.mean_before, found.mean) == pytest.approx((0.5, 7 / 12))
    assert found.turned == 1.0
    assert math.isnan(found.spearman)
    back = rescore(records, seeing, blind)
    assert (back.separated, back.tied) == ((), (0,))


def test_rank_correlations_by_hand(play, calls):
    records = episodes(play, calls, CURATED)
    # F1 with costs: 1, 0.5, 2/3, -0.2; only precision's order of the middle two turns over with -1 per malformed call.
    first = CuratedConfig(beta=1.0)
    second = CuratedConfig(beta=1.0, format_penalty=0.4)
    found = rescore(records, first, second)
    # Ranks 4 2 3 1 and 4 3 2 1: Spearman 1 - 6 · 2 / (4 · 15) = 0.8; one pair of six turned: Kendall 4/6.
    assert (found.spearman, found.kendall) == pytest.approx((0.8, 2 / 3))
    same = rescore(records, first, first)
    assert (same.spearman, same.kendall, same.moved, same.turned) == pytest.approx((1.0, 1.0, 0.0, 0.0))


def test_what_cannot_be_rescored_says_why():
    lost = RolloutRecord("r", "train", 1, "s", 0, 0, 0, "?")
    with pytest.raises(UserError, match="no episode has a score"):
        rescore([lost], GSM8KConfig(), GSM8KConfig())
    other = RolloutRecord("r", "train", 1, "s", 0, 0, 0, "?", reward=0.0, score_parts={"exact": 1.0, "empty": 0.0})
    with pytest.raises(UserError, match=r"'s' has no score part 'precision'.*'curated' needs"):
        rescore([other], SearchToolsConfig(), CuratedConfig())
