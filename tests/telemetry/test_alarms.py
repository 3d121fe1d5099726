"""Alarms over histories: by hand, for simulated pathologies, and silent in healthy runs. Thresholds came first."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from jaxsearchrl.config import AlarmName
from jaxsearchrl.telemetry.alarms import _RULES, CURATES_ANYTHING, LEAST, WINDOW, alarms

STEPS, GROUPS, TRIES = 40, 8, 8


def names(rows) -> set[str]:
    return {alarm.name for alarm in alarms(rows)}


def levels(**metrics):
    return [{name.replace("__", "/"): value for name, value in metrics.items()}] * LEAST


def test_an_alarm_says_what_it_saw_what_it_means_and_what_to_try():
    (alarm,) = alarms(levels(rate__truncated=0.25))
    assert str(alarm) == (
        "truncation: rate/truncated is 0.25 (> 0.2); turns are cut by the token limit: "
        "raise sampling.max_turn_tokens, or penalise length"
    )


def test_a_threshold_itself_raises_nothing_and_neither_do_few_steps_or_absent_numbers():
    assert alarms([]) == []
    assert alarms(levels(groups__no_signal=0.5, rate__finished=0.5, unknown=9.0)) == []
    assert alarms(levels(groups__no_signal=1.0)[: LEAST - 1]) == []
    assert alarms(levels(entropy=None, rate__empty=float("nan"))) == []
    assert names(levels(groups__no_signal=0.51, rate__finished=0.49)) == {"no signal", "not finished"}


def test_one_odd_step_raises_nothing():
    rows = [{"rate/truncated": 0.1}] * (WINDOW - 1)
    assert alarms([*rows, {"rate/truncated": 0.9}]) == []  # their mean is 0.2
    assert names([*rows, {"rate/truncated": 0.95}]) == {"truncation"}


def test_a_drift_compares_the_last_steps_with_the_first():
    rows = [{"tokens/sampled": 100.0}] * WINDOW
    assert alarms([*rows, *[{"tokens/sampled": 251.0}] * (WINDOW - 1)]) == []  # too few to tell
    assert alarms([*rows, *[{"tokens/sampled": 250.0}] * WINDOW]) == []
    (alarm,) = alarms([*rows, *[{"tokens/sampled": 251.0}] * WINDOW])
    assert alarm.seen == "tokens/sampled went from 100 to 251 (more than 2.5 times)"
    assert names([*rows, *[{"tokens/sampled": 39.0}] * WINDOW]) == {"length collapse"}
    finished = [*[{"rate/finished": 0.95}] * WINDOW, *[{"rate/finished": 0.65}] * WINDOW]
    assert [alarm.seen for alarm in alarms(finished)] == ["rate/finished went from 0.95 to 0.65 (more than -0.25)"]


def test_a_skipped_update_is_an_alarm_unless_the_rewards_explain_it():
    assert names(levels(learn__skipped=1.0, groups__no_signal=0.4)) == {"no update"}
    assert names(levels(learn__skipped=1.0, groups__no_signal=1.0)) == {"no signal"}
    assert alarms(levels(learn__skipped=0.0, groups__no_signal=0.0)) == []


def run(seed: int, **course: tuple[float, float]):
    """Rows of a run of 40 steps, 8 groups of 8: each metric goes from a value to another, with the noise of episodes.

    Without `course`, a healthy run: it learns to hand over better sets, ends better, and varies a little less.
    """
    rng = np.random.default_rng(seed)
    healthy = {
        "rate/empty": (0.3, 0.05),
        "rate/finished": (0.8, 0.97),
        "rate/truncated": (0.08, 0.02),
        "score/precision": (0.4, 0.6),
        "score/format": (0.8, 0.97),
        "calls/valid": (0.85, 0.97),
        "calls/duplicate": (0.1, 0.05),
        "groups/no_signal": (0.2, 0.35),
        "groups/all_bad": (0.15, 0.05),
        "infrastructure/failed_share": (0.0, 0.0),
        "entropy": (0.5, 0.3),
        "tokens/sampled": (300.0, 250.0),
        "learn/logprob_gap": (0.002, 0.004),
        "learn/kl": (0.0, 0.1),
        "learn/skipped": (0.0, 0.0),
    } | {name.replace("__", "/"): ends for name, ends in course.items()}
    rows = []
    for step in range(STEPS):
        row = {"data/position": float((step + 1) * GROUPS)}
        for name, (first, last) in healthy.items():
            value = first + (last - first) * step / (STEPS - 1)
            if name.startswith(("rate/", "calls/", "groups/", "infrastructure/", "learn/skipped")):
                count = GROUPS if name.startswith(("groups/", "learn/")) else GROUPS * TRIES
                row[name] = rng.binomial(count, value) / count
            else:
                row[name] = max(0.0, value + rng.normal(0.0, 0.1 * value))
        rows.append(row)
    return rows


def ever(rows) -> set[str]:
    """The alarms of the whole run, looked at after each step as the trainer does."""
    return {name for step in range(1, len(rows) + 1) for name in names(rows[:step])}


def test_twenty_healthy_runs_raise_at_most_one_alarm():
    assert sum(len(ever(run(seed))) for seed in range(20)) <= 1


PATHOLOGIES = {
    "curate anything": ({"rate__empty": (0.5, 0.02), "score__precision": (0.5, 0.2)}, {"empty"}),
    "broken finish": ({"rate__finished": (0.9, 0.1)}, {"not finished"}),
    "answer format drift": ({"score__format": (0.95, 0.3)}, set()),
    "call format drift": ({"calls__valid": (0.99, 0.68)}, {"tool errors"}),
    "tool errors": ({"calls__valid": (0.9, 0.4)}, {"call format drift"}),
    "entropy collapse": ({"entropy": (0.3, 0.0)}, {"entropy fall"}),
    "entropy fall": ({"entropy": (2.0, 0.15)}, set()),
    "length collapse": ({"tokens__sampled": (400.0, 60.0)}, set()),
    "length blow-up": ({"tokens__sampled": (150.0, 900.0)}, set()),
    "no signal": ({"groups__no_signal": (0.2, 0.95)}, {"no update"}),
    "all bad": ({"groups__all_bad": (0.4, 0.9)}, set()),
    "empty": ({"rate__empty": (0.3, 0.9)}, set()),
    "not finished": ({"rate__finished": (0.3, 0.3)}, set()),
    "log-prob gap": ({"learn__logprob_gap": (0.01, 0.2)}, set()),
    "KL blow-up": ({"learn__kl": (0.0, 2.0)}, set()),
    "duplicate calls": ({"calls__duplicate": (0.1, 0.7)}, set()),
    "truncation": ({"rate__truncated": (0.05, 0.6)}, set()),
    "no update": ({"learn__skipped": (0.2, 1.0)}, set()),
    "lost episodes": ({"infrastructure__failed_share": (0.0, 0.3)}, set()),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", PATHOLOGIES)
def test_a_pathology_raises_its_alarm_and_at_most_related_ones(name, seed):
    course, related = PATHOLOGIES[name]
    raised = ever(run(seed, **course))
    assert name in raised
    assert raised <= {name, *related}


def test_data_that_stand_still_raise_their_alarm_at_once():
    rows = run(0)
    rows[20]["data/position"] = rows[19]["data/position"]
    assert names(rows[:20]) == set()
    assert names(rows[:21]) == {"data stands still"}


def test_the_documented_alarms_and_thresholds_are_those_of_the_code():
    text = (Path(__file__).parents[2] / "docs/evaluation.md").read_text().split("## Alarms")[1]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    documented = {cells[0]: cells[1:] for cells in cells if len(cells) == 4}
    rules = {rule.name: rule for rule in _RULES}
    assert set(get_args(AlarmName)) == documented.keys() - {"alarm"}  # what alarms.stop_on may name
    assert documented.keys() - {"alarm"} == {*rules, "curate anything", "data stands still"}
    for name, rule in rules.items():
        limit = abs(getattr(rule, "threshold", None) or getattr(rule, "by", 0))
        assert f"`{rule.metric}`" in documented[name][0]
        assert f"{limit:g}" in documented[name][0].split()
        assert documented[name][1:] == [rule.meaning, rule.remedy]
    assert CURATES_ANYTHING == (-0.1, -0.1)
