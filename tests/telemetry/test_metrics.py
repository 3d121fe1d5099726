"""The metrics of a step, against numbers worked by hand."""

import numpy as np
import pytest

from jaxsearchrl.records import CallRecord, RolloutRecord, TurnRecord
from jaxsearchrl.telemetry.metrics import expert_metrics, rollout_metrics
from jaxsearchrl.trajectory import Span


def episode(group: int, attempt: int, reward: float | None, **fields: object) -> RolloutRecord:
    defaults: dict = {"run": "r", "split": "train", "step": 1, "task_id": f"t{group}", "uid": 0, "query": "q"}
    return RolloutRecord(group=group, attempt=attempt, reward=reward, **(defaults | fields))


def group(number: int, *rewards: float | None, **fields: object) -> list[RolloutRecord]:
    return [episode(number, attempt, reward, **fields) for attempt, reward in enumerate(rewards)]


def test_groups_without_signal_are_split_into_good_and_bad():
    records = group(0, 0.5, 0.5) + group(1, -0.2, -0.2) + group(2, 0.0, 0.0) + group(3, 0.1, 0.9)
    metrics = rollout_metrics(records, 2)
    assert metrics["groups/total"] == 4
    assert metrics["groups/no_signal"] == 0.75
    assert metrics["groups/all_good"] == 0.25
    assert metrics["groups/all_bad"] == 0.5
    assert metrics["reward"] == pytest.approx((1.0 - 0.4 + 0.0 + 1.0) / 8)


def test_rewards_that_differ_by_rounding_have_no_signal_for_the_learner_nor_here():
    assert rollout_metrics(group(0, 0.1 + 0.2, 0.3), 2)["groups/no_signal"] == 1


def test_a_part_that_some_episodes_lack_is_a_mean_over_those_that_have_it():
    records = [episode(0, 0, 0.1, score_parts={"f1": 0.2, "answer": 0.5}), episode(0, 1, 0.2, score_parts={"f1": 0.4})]
    metrics = rollout_metrics(records, 2)
    assert (metrics["score/f1"], metrics["score/answer"]) == (pytest.approx(0.3), 0.5)


def test_infrastructure_failures_are_counted_and_enter_no_mean_and_no_baseline():
    lost = {"infrastructure_errors": ("down", "down"), "seconds": 100.0, "score_parts": {}}
    records = [episode(0, 0, 0.4, score_parts={"f1": 0.4, "empty": 0.0}), episode(0, 1, None, **lost)]
    records += [episode(1, 0, None, **lost), episode(1, 1, None, **lost)]
    metrics = rollout_metrics(records, 2)
    assert metrics["infrastructure/failed"] == 3
    assert metrics["infrastructure/failed_share"] == 0.75
    assert metrics["infrastructure/errors"] == 6
    assert metrics["reward"] == metrics["score/f1"] == 0.4
    assert metrics["episode_seconds/max"] == 0
    assert metrics["rate/nonempty"] == 0.25
    assert metrics["groups/total"] == 1
    assert metrics["groups/no_signal"] == 1
    only_lost = rollout_metrics(group(0, None, None), 2)
    assert only_lost["infrastructure/failed"] == 2
    assert "reward" not in only_lost


def test_endings_and_empty_sets():
    curated = (TurnRecord(curated=("a",)),)
    records = [
        episode(0, 0, -0.2, stop_reason="turns", truncated=True),
        episode(0, 1, 0.5, stop_reason="finish", turns=curated),
        episode(0, 2, -0.2, stop_reason="malformed", turns=curated, score_parts={"empty": 1.0}),
        episode(0, 3, 0.5, stop_reason="finish", turns=curated),
    ]
    metrics = rollout_metrics(records, 4)
    assert metrics["rate/empty"] == 0.5
    assert metrics["rate/nonempty"] == 0.5
    assert metrics["rate/finished"] == 0.5
    assert metrics["rate/truncated"] == 0.25
    assert metrics["turns"] == 0.75


def test_calls_are_valid_once_and_duplicate_within_their_own_episode():
    search, again = CallRecord("search", {"query": "a", "k": 3}), CallRecord("search", {"k": 3, "query": "a"})
    other, malformed = CallRecord("search", {"query": "b"}), CallRecord("", ok=False, outcome="{")
    first = episode(0, 0, 0.1, turns=(TurnRecord(calls=(search, other)), TurnRecord(calls=(again, malformed))))
    metrics = rollout_metrics([first, episode(0, 1, 0.2, turns=(TurnRecord(calls=(search,)),))], 2)
    assert metrics["calls"] == 2.5
    assert metrics["calls/valid"] == 0.8
    assert metrics["calls/duplicate"] == 0.2
    assert "calls/valid" not in rollout_metrics(group(0, 0.1, 0.2), 2)


def test_tokens_entropy_and_seconds():
    spans = (Span("prompt", 0, 2), Span("sampled", 2, 3), Span("observation", 3, 6))
    short = episode(0, 0, 0.0, tokens=tuple(range(6)), spans=spans, sample_logprobs=(-3.0,), seconds=1.0)
    long = episode(
        0, 1, 1.0, tokens=(1, 2, 3), spans=(Span("sampled", 0, 3),), sample_logprobs=(-1.0, -1.0, -1.0), seconds=3.0
    )
    metrics = rollout_metrics([short, long], 2)
    assert (metrics["tokens/prompt"], metrics["tokens/sampled"], metrics["tokens/observation"]) == (1.0, 2.0, 1.5)
    assert metrics["entropy"] == 1.5  # per token, not per episode
    assert metrics["episode_seconds/p50"] == 2.0
    assert metrics["episode_seconds/p95"] == pytest.approx(2.9)
    assert metrics["episode_seconds/max"] == 3.0


def test_a_group_with_a_try_twice_or_missing_or_of_two_tasks_is_refused():
    for records in (
        [episode(0, 0, 1.0), episode(0, 0, 1.0)],
        [episode(0, 0, 1.0)],
        [episode(0, 0, 1.0), episode(0, 1, 1.0, task_id="other")],
    ):
        with pytest.raises(ValueError, match="group 0 has tries"):
            rollout_metrics(records, 2)


def test_the_order_of_records_changes_nothing():
    records = group(0, 0.5, 0.25) + group(1, -0.2, -0.2)
    assert rollout_metrics(records, 2) == rollout_metrics(records[::-1], 2)


def test_the_load_of_experts_by_hand():
    even, busy = [2, 2, 2, 2], [6, 1, 1, 0]
    assert expert_metrics(np.array([even])) == {"experts/load_max": 1.0, "experts/unused": 0.0}
    # The busiest of the second layer has 6 where the mean is 2; one of eight experts has nothing to do.
    assert expert_metrics(np.array([even, busy])) == {"experts/load_max": 3.0, "experts/unused": 0.125}
    # Two of five a token, and all tokens alike: 5 / 2.
    assert expert_metrics(np.array([[7, 0, 0, 7, 0]])) == {"experts/load_max": 2.5, "experts/unused": 0.6}
    assert expert_metrics(None) == expert_metrics(np.zeros((2, 4), int)) == {}
