"""Headroom: counts by hand, and what the words say."""

import pytest

from jaxsearchrl.evaluation.headroom import headroom, idle_cause
from jaxsearchrl.records import RolloutRecord


def tries(task: str, *rewards: float, outcome: str = "partial", **more) -> list[RolloutRecord]:
    about = {"run": "r", "split": "eval", "step": 0, "uid": 0, "query": "?", "group": 0, "stop_reason": "finish"}
    return [
        RolloutRecord(
            task_id=task,
            attempt=attempt,
            reward=reward,
            score_parts={"f_beta": max(reward, 0.0), "empty": float(reward < 0)},
            outcome="complete" if reward == 1 else outcome,
            **(about | more),
        )
        for attempt, reward in enumerate(rewards)
    ]


def test_the_best_of_n_and_the_kinds_of_tasks_by_hand():
    records = [
        *tries("never", 0.0, 0.0),
        *tries("sometimes", 0.5, 1.0),
        *tries("always", 1.0, 1.0),
        *tries("idle", -0.2, -0.2, stop_reason="turns"),
    ]
    # Gaps 0, 0.25, 0 and 0: mean 0.0625, deviation 0.125, t(3) = 3.18: the interval holds 0.
    found = headroom(records, "f_beta")
    assert found is not None
    assert (found.mean.mean, found.best.mean) == (pytest.approx(0.4375), pytest.approx(0.5))  # (0 + .75 + 1 + 0) / 4
    assert found.gap.mean == pytest.approx(0.0625)
    assert (found.never, found.sometimes, found.always, found.varied) == (2, 1, 1, 1)
    assert found.idle == {"the turns were used up": 1}
    assert found.verdict() == (
        "Little: tries of one task earn different rewards on 1 of 4 tasks, and the best of them is 0.062 above their "
        "mean in F-beta, which is inside the noise. On 1 of 4 tasks no try hands anything over (the turns were used "
        "up: 1). Much of it is behaviour, not search: limits, format and prompt come first."
    )


def test_tries_that_differ_on_every_task_leave_something_to_sharpen():
    found = headroom([record for n in range(4) for record in tries(f"t{n}", 0.2, 0.3 + 0.1 * n)], "f_beta")
    assert found is not None
    assert found.best.tries == found.gap.tries == found.tries == 8
    # The best 0.3 to 0.6, the means half way down to 0.2: gaps 0.05, 0.1, 0.15, 0.2.
    assert found.verdict() == (
        "Yes: tries of one task earn different rewards on 4 of 4 tasks, and the best of them is 0.125 above their mean "
        "in F-beta."
    )


def test_failed_episodes_are_no_tries():
    records = tries("a", 0.0, 1.0)
    lost = RolloutRecord("r", "eval", 0, "b", 1, 0, 0, "?")
    found = headroom([*records, lost], "f_beta")
    assert found is not None
    assert (found.tasks, found.tries) == (1, 2)
    assert headroom([lost], "f_beta") is None


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([r for n in range(12) for r in tries(f"t{n}", 0.0, 0.0)], "Hardly: on 12 of 12 tasks all tries earn the same"),
        ([r for n in range(12) for r in tries(f"t{n}", 1.0, 1.0)], "Hardly: 12 of 12 tasks are solved in every try"),
        ([r for n in range(12) for r in tries(f"t{n}", 1.0)], "Not to be seen from one try per task"),
    ],
)
def test_nothing_to_sharpen_is_called_so(records, words):
    found = headroom(records, "f_beta")
    assert found is not None
    assert found.verdict().startswith(words)


def test_the_cause_of_a_task_without_any_set_is_the_commonest_of_its_tries():
    records = [
        *tries("a", -0.2, -0.2, stop_reason="context"),
        RolloutRecord(**(vars(tries("a", -0.2, stop_reason="turns")[0]) | {"attempt": 2})),
        *tries("b", -0.2, -0.2, truncated=True),
        *tries("c", -0.2, 0.5),
    ]
    found = headroom(records, "f_beta")
    assert found is not None
    assert found.idle == {"the context was used up": 1, "a turn was cut off at the token limit": 1}
    assert idle_cause(tries("a", -0.2, stop_reason="finish")[0]) == "finished with nothing"
    assert idle_cause(tries("a", -0.2, stop_reason="of its own")[0]) == "of its own"
