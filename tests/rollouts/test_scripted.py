"""Agents without tokens: the loop that plays them, and their episodes as what a policy would have sampled."""

import json
from dataclasses import replace

import pytest

from jaxsearchrl.config import SamplingConfig
from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.rollouts.collect import to_records
from jaxsearchrl.rollouts.play import play as play_agent
from jaxsearchrl.rollouts.scripted import scripted_rollout
from jaxsearchrl.tasks.curated.rule import RuleAgent

CONFIG = SamplingConfig(capacity=4096, max_turn_tokens=256)


class Recited:
    """Says given turns; keeps the conversations that it was shown."""

    def __init__(self, *turns):
        self.turns, self.seen = list(turns), []

    def act(self, messages):
        self.seen.append(list(messages))
        return self.turns[len(self.seen) - 1]


SEARCH = AssistantTurn("I search.", calls=(ToolCall("bm25_search", {"query": "moons mars"}),))
TAKE = AssistantTurn(calls=(ToolCall("curate", {"document_ids": ["mars"]}), ToolCall("finish", {})))


def test_the_conversation_grows_by_turn_and_answer(environment):
    agent = Recited(SEARCH, TAKE)
    steps = play_agent(agent, environment())
    assert [turn for turn, _ in steps] == [SEARCH, TAKE]
    first, second = agent.seen
    assert second[: len(first)] == first
    assert (second[len(first)].role, second[len(first)].turn) == ("assistant", SEARCH)
    assert second[len(first) + 1 :] == steps[0][1]


def test_a_scripted_episode_is_what_a_policy_would_have_sampled(chat, environment, scripted, play):
    """Tokens, mask, spans, turns and score equal those of a policy that samples the same turns."""
    rollout = scripted_rollout(RuleAgent(), environment(), chat, CONFIG)
    texts = [chat.decode(rollout.trajectory.tokens[slice(*turn.tokens)][:-1]) for turn in rollout.turns]
    [sampled] = play([environment()], scripted({0: texts}))
    assert (rollout.stop_reason, rollout.score.outcome) == ("finish", "complete")
    assert rollout.trajectory.tokens == sampled.trajectory.tokens
    assert rollout.trajectory.action_mask == sampled.trajectory.action_mask
    assert rollout.trajectory.spans == sampled.trajectory.spans
    assert rollout.score == sampled.score
    assert [(t.calls, t.observation, t.curated, t.tokens) for t in rollout.turns] == [
        (t.calls, t.observation, t.curated, t.tokens) for t in sampled.turns
    ]
    assert set(rollout.trajectory.sample_logprobs) == {0.0}


def test_a_format_with_one_call_a_turn_has_them_one_by_one(chat, environment, monkeypatch):
    """The agent is asked again when all are answered; what it says goes with the first."""
    agent = Recited(replace(SEARCH, calls=(*SEARCH.calls, ToolCall("bm25_search", {"query": "owls"}))), TAKE)
    monkeypatch.setattr(chat, "one_call_a_turn", True, raising=False)
    rollout = scripted_rollout(agent, environment(), chat, CONFIG)
    assert [[call.name for call in turn.calls] for turn in rollout.turns] == [
        ["bm25_search"],
        ["bm25_search"],
        ["curate"],
        ["finish"],
    ]
    assert [turn.text for turn in rollout.turns] == ["I search.", "", "", ""]
    assert [message.role for message in agent.seen[1]].count("tool") == 2
    assert (rollout.stop_reason, rollout.score.outcome) == ("finish", "complete")


def test_a_policy_and_an_expert_are_told_the_same_tokens_left(chat, environment, scripted, play):
    rollout = scripted_rollout(RuleAgent(), environment(show_tokens_left=True), chat, CONFIG)
    texts = [chat.decode(rollout.trajectory.tokens[slice(*turn.tokens)][:-1]) for turn in rollout.turns]
    [sampled] = play([environment(show_tokens_left=True)], scripted({0: texts}), capacity=CONFIG.capacity)
    assert rollout.trajectory.tokens == sampled.trajectory.tokens
    first = json.loads(rollout.turns[0].observation.splitlines()[0])
    assert first["tokens_left"] == CONFIG.capacity - rollout.turns[0].tokens[1]


def test_it_ends_where_the_context_does(chat, environment):
    whole = scripted_rollout(Recited(SEARCH, TAKE), environment(), chat, CONFIG)
    prompt, search, answer, take = whole.trajectory.spans
    for capacity, spans in ((take.stop, 4), (take.stop - 1, 3), (answer.stop, 2), (search.stop, 2), (prompt.stop, 1)):
        config = SamplingConfig(capacity=capacity, max_turn_tokens=256)
        rollout = scripted_rollout(Recited(SEARCH, TAKE), environment(), chat, config)
        assert len(rollout.trajectory.spans) == spans, capacity
        assert rollout.stop_reason == ("finish" if capacity == take.stop else "context")
        assert rollout.score.outcome == ("complete" if capacity == take.stop else "empty")


def test_a_failure_leaves_it_without_a_score(chat, environment):
    episode = environment()

    def down(turn):
        raise InfrastructureError("down")

    episode.step = down
    rollout = scripted_rollout(RuleAgent(), episode, chat, CONFIG)
    assert (rollout.score, rollout.stop_reason) == (None, "infrastructure")
    assert rollout.errors == ["InfrastructureError: down"]


@pytest.mark.parametrize("part", ["reset", "step", "score"])
def test_a_fault_of_ours_in_one_episode_ends_no_other(chat, environment, part):
    episode = environment()
    setattr(episode, part, lambda *_: {}["question"])
    rollout = scripted_rollout(RuleAgent(), episode, chat, CONFIG, (0.0,))
    assert (rollout.score, rollout.stop_reason, rollout.errors) == (None, "infrastructure", ["KeyError: 'question'"])


def test_what_the_infrastructure_fails_once_is_tried_again_and_counted(chat, environment):
    episode, agent = environment(), RuleAgent()
    step, act, failures = episode.step, agent.act, {"step": 1, "act": 2}

    def flaky(name, of):
        def call(argument):
            if failures[name]:
                failures[name] -= 1
                raise InfrastructureError(name)
            return of(argument)

        return call

    episode.step, agent.act = flaky("step", step), flaky("act", act)
    rollout = scripted_rollout(agent, episode, chat, CONFIG, (0.0, 0.0))
    assert (rollout.stop_reason, rollout.score.outcome) == ("finish", "complete")
    assert rollout.errors == [f"InfrastructureError: {name}" for name in ("act", "act", "step")]
    assert len(rollout.turns) == 2


@pytest.mark.parametrize("advantages", [None, [0.5, -0.5, 1.0, -1.0]])
def test_records_name_group_try_and_advantage(environment, scripted, play, call, advantages):
    one, two = environment()._task, type(environment()._task)("q2", "Owls?", environment()._task.facts)
    texts = {uid: ["hm " * uid + call("finish")] for uid in range(4)}
    episodes = [environment(one), environment(one), environment(two), environment(two)]
    rollouts = play(episodes, scripted(texts))
    records = to_records(rollouts, [one, two], 2, run="r", split="train", step=7, advantages=advantages)
    assert [(r.task_id, r.group, r.attempt, r.uid) for r in records] == [
        ("q1", 0, 0, 0),
        ("q1", 0, 1, 1),
        ("q2", 1, 0, 2),
        ("q2", 1, 1, 3),
    ]
    assert [r.advantage for r in records] == (advantages or [None] * 4)
    for record, rollout in zip(records, rollouts, strict=True):
        assert (record.run, record.split, record.step, record.stop_reason) == ("r", "train", 7, "finish")
        assert record.reward == rollout.score.reward
        assert record.gold == {"facts": [{"fact": "phobos", "chunk_ids": ["mars"], "is_final_answer": False}]}
        again = record.trajectory()
        assert (again.tokens, again.action_mask) == (rollout.trajectory.tokens, rollout.trajectory.action_mask)
