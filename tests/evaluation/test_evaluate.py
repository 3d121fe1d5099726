"""What an evaluation sums up, by hand."""

import pytest

from jaxsearchrl.evaluation.evaluate import summarise
from jaxsearchrl.records import RolloutRecord


def record(task, attempt, exact, source="", group=0, **more):
    parts = {"exact": exact, "searches": 2.0}
    values = {"run": "r", "split": "eval", "step": 0, "uid": 0, "query": "?", "reward": exact, "score_parts": parts}
    return RolloutRecord(task_id=task, group=group, attempt=attempt, source=source, **(values | more))


def test_means_by_source_weigh_tasks_alike_and_the_macro_mean_weighs_sources_alike():
    records = [
        record("n1", 0, 1.0, "nq", 0),
        record("n1", 1, 0.0, "nq", 0),
        record("n2", 0, 0.0, "nq", 1),
        record("n2", 1, 0.0, "nq", 1),
        record("h1", 0, 1.0, "hotpotqa", 2),
        record("h1", 1, 1.0, "hotpotqa", 2),
    ]
    metrics = summarise(records, 2, ("exact", "searches"))
    assert metrics["score/exact"] == pytest.approx(0.5)  # (0.5 + 0 + 1) / 3
    assert (metrics["source/nq/exact"], metrics["source/hotpotqa/exact"]) == (0.25, 1.0)
    assert metrics["macro/exact"] == 0.625
    assert metrics["macro/searches"] == 2.0
    assert metrics["best_of_n/exact"] == pytest.approx(2 / 3)
    assert {"score/exact_low", "score/searches_high", "reward_low"} <= metrics.keys()


def test_without_sources_there_are_no_means_by_source():
    metrics = summarise([record("a", 0, 1.0)], 1, ("exact",))
    assert not [name for name in metrics if name.startswith(("source/", "macro/"))]


def test_what_the_infrastructure_failed_is_in_no_mean():
    failed = record("n2", 0, 0.0, "nq", 1, reward=None, score_parts={}, stop_reason="infrastructure")
    metrics = summarise([record("n1", 0, 1.0, "nq"), failed], 1, ("exact",))
    assert (metrics["score/exact"], metrics["macro/exact"], metrics["infrastructure/failed"]) == (1.0, 1.0, 1.0)
