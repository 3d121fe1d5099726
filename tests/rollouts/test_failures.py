"""Failures outside the policy: retried, counted, and never a reward."""

import pytest

from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.learning.advantages import group_advantages
from jaxsearchrl.messages import Message
from jaxsearchrl.rollouts.collect import to_records
from jaxsearchrl.rollouts.loop import RETRY_SECONDS
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.telemetry.metrics import rollout_metrics


class Failing:
    """Over after two turns. `faults` maps a method to the exceptions that its next calls raise."""

    def __init__(self, **faults):
        self.faults, self.turns, self.stop_reason = {name: list(errors) for name, errors in faults.items()}, 0, ""

    def _raise(self, name):
        if self.faults.get(name):
            raise self.faults[name].pop(0)

    @property
    def tools(self):
        self._raise("tools")
        return ()

    def reset(self):
        self._raise("reset")
        return [Message("user", "go")]

    def step(self, turn):
        self._raise("step")
        self.turns += 1
        self.stop_reason = "turns" if self.turns == 2 else ""
        return [Message("tool", "answer")], self.turns == 2

    def score(self):
        self._raise("score")
        return Score(float(self.turns))

    def last_step(self):
        self._raise("last_step")
        return {}


DOWN = InfrastructureError("retriever down")


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_failure_that_a_retry_heals_costs_nothing(scripted, play, deterministic):
    healed, healthy = play(
        [Failing(step=[DOWN, InfrastructureError("still down")]), Failing()],
        scripted({0: ["hi"], 1: ["hi"]}),
        deterministic=deterministic,
    )
    assert healed.errors == ["InfrastructureError: retriever down", "InfrastructureError: still down"]
    assert (healed.score, healed.stop_reason) == (Score(2.0), "turns")
    assert healed.trajectory == healthy.trajectory
    assert (healthy.errors, len(healed.turns)) == ([], 2)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_failure_for_good_leaves_the_episode_out(scripted, play, deterministic):
    environments = [Failing(step=[DOWN] * 99), Failing(), Failing(), Failing(step=[DOWN])]
    sampler = scripted({uid: ["hi"] for uid in range(4)}, slots=2)
    rollouts = play(environments, sampler, retry_seconds=(0.0, 0.0), deterministic=deterministic)
    assert (rollouts[0].score, rollouts[0].stop_reason, len(rollouts[0].errors)) == (None, "infrastructure", 3)
    assert [r.score.reward for r in rollouts[1:]] == [2.0, 2.0, 2.0]


def test_it_is_tried_once_more_after_each_pause(scripted, play):
    assert RETRY_SECONDS == (1.0, 4.0, 16.0)
    pauses = (0.01, 0.02)
    environment = Failing(step=[DOWN, DOWN, DOWN])
    [rollout] = play([environment], scripted({0: ["hi"]}), retry_seconds=pauses)
    assert (environment.faults["step"], rollout.stop_reason) == ([], "infrastructure")
    assert rollout.seconds >= sum(pauses)


@pytest.mark.parametrize("where", ["reset", "tools", "step", "last_step", "score"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_environment_that_raises_costs_its_own_episode_only(scripted, play, where, deterministic):
    environments = [Failing(), Failing(**{where: [KeyError("question")]}), Failing()]
    sampler = scripted({uid: ["hi"] for uid in range(3)}, slots=1)
    before, bad, after = play(environments, sampler, deterministic=deterministic)
    assert (bad.score, bad.stop_reason, bad.errors) == (None, "infrastructure", ["KeyError: 'question'"])
    assert before.score == after.score == Score(2.0)


def test_a_reward_that_is_not_finite_is_no_reward(scripted, play):
    environment = Failing()
    environment.score = lambda: Score(float("nan"))
    [rollout] = play([environment], scripted({0: ["hi"]}))
    assert (rollout.score, rollout.stop_reason) == (None, "infrastructure")
    assert "non-finite reward" in rollout.errors[0]


def test_failed_episodes_are_counted_and_enter_no_mean_or_baseline(environment, scripted, play, call):
    """Through records, metrics and advantages: a failure is not a zero."""
    task = environment()._task
    good, poor = environment(), environment()
    broken, none = environment(), environment()
    broken.step = lambda turn: (_ for _ in ()).throw(InfrastructureError("down"))
    search, finish = call("bm25_search", query="moons mars"), call("finish")
    turns = {
        0: [search, call("curate", document_ids=["mars"]) + finish],
        1: [finish],
        2: [search],
        3: [search, finish],
    }
    rollouts = play([good, poor, broken, none], scripted(turns))
    records = to_records(rollouts, [task], 4, run="r", split="train", step=1)
    assert [record.reward for record in records] == [1.0, -0.2, None, -0.2]
    metrics = rollout_metrics(records, 4)
    assert (metrics["infrastructure/failed"], metrics["infrastructure/errors"]) == (1.0, 4.0)
    assert metrics["reward"] == pytest.approx(0.2)
    advantages = group_advantages(
        [r.score.reward if r.score else 0.0 for r in rollouts], [0] * 4, [r.score is not None for r in rollouts]
    )
    assert advantages.advantages.tolist() == pytest.approx([0.8, -0.4, 0.0, -0.4])
    assert advantages.count == 3
