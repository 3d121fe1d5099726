"""pass@k and pass^k: a table by hand, against counting, and over records."""

from itertools import combinations

import pytest

from jaxsearchrl.evaluation.reliability import pass_at_k, pass_hat_k, pass_rates
from jaxsearchrl.records import RolloutRecord


def record(task: str, attempt: int, outcome: str, **more) -> RolloutRecord:
    values = {"run": "r", "split": "eval", "step": 0, "uid": 0, "query": "?", "reward": 0.0, "group": 0}
    return RolloutRecord(task_id=task, attempt=attempt, outcome=outcome, **(values | more))


@pytest.mark.parametrize(
    ("tries", "solved", "once", "always"),
    [
        (4, 0, [0, 0, 0, 0], [0, 0, 0, 0]),
        (4, 1, [1 / 4, 1 / 2, 3 / 4, 1], [1 / 4, 0, 0, 0]),
        (4, 2, [1 / 2, 5 / 6, 1, 1], [1 / 2, 1 / 6, 0, 0]),
        (4, 3, [3 / 4, 1, 1, 1], [3 / 4, 1 / 2, 1 / 4, 0]),
        (4, 4, [1, 1, 1, 1], [1, 1, 1, 1]),
        (8, 2, [1 / 4, 13 / 28, 9 / 14, 11 / 14, 25 / 28, 27 / 28, 1, 1], [1 / 4, 1 / 28, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_the_tables_by_hand(tries, solved, once, always):
    assert [pass_at_k(tries, solved, k) for k in range(1, tries + 1)] == pytest.approx(once)
    assert [pass_hat_k(tries, solved, k) for k in range(1, tries + 1)] == pytest.approx(always)


@pytest.mark.parametrize("solved", range(7))
@pytest.mark.parametrize("k", range(1, 7))
def test_they_are_what_counting_all_draws_gives(solved, k):
    draws = list(combinations([True] * solved + [False] * (6 - solved), k))
    assert pass_at_k(6, solved, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(6, solved, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_impossible_counts_are_refused():
    for tries, solved, k in ((4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1), (0, 0, 1)):
        with pytest.raises(ValueError):
            pass_at_k(tries, solved, k)
        with pytest.raises(ValueError):
            pass_hat_k(tries, solved, k)


def test_rates_over_tasks_count_solved_outcomes_and_no_failure_of_the_infrastructure():
    records = [
        record("a", 0, "right"),
        record("a", 1, "wrong"),
        record("b", 0, "complete"),
        record("b", 1, "complete"),
        record("c", 0, "partial"),
        record("c", 1, "", reward=None),
    ]
    one, two = pass_rates(records)
    assert one.at_least_once.mean == one.every_time.mean == pytest.approx(0.5)  # (1/2 + 1 + 0) / 3
    assert (one.at_least_once.tasks, two.at_least_once.tasks) == (3, 2)  # c has one scored try
    assert (one.every_time.tries, two.every_time.tries) == (5, 4)
    assert (two.at_least_once.mean, two.every_time.mean) == (1.0, 0.5)
    assert pass_rates([record("c", 0, "", reward=None)]) == []
