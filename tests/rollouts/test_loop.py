"""Whole episodes through the loop: what the tokens say, what is scored, in which order things happen."""

import threading

import pytest

from jaxsearchrl.messages import Message
from jaxsearchrl.tasks.environment import Score


class Steps:
    """An environment that answers `turns` turns with "turn n", then is over; its reward is the number of turns."""

    tools = ()

    def __init__(self, turns, before=lambda turn: None, name=""):
        self.turns, self.before, self.name, self.done, self.stop_reason = turns, before, name, 0, ""

    def reset(self):
        return [Message("user", f"go {self.name}")]

    def step(self, turn):
        self.before(self.done)
        self.done += 1
        if self.done == self.turns:
            self.stop_reason = "turns"
        return [Message("tool", f"turn {self.done}")], self.done == self.turns

    def score(self):
        return Score(float(self.done))

    def last_step(self):
        return {}


def facts(rollouts):
    """All of a list of rollouts but its times."""
    return [
        (
            r.trajectory,
            [(t.text, t.calls, t.observation, t.tokens) for t in r.turns],
            r.score,
            r.stop_reason,
            r.truncated,
        )
        for r in rollouts
    ]


# --------------------------------------------------------------------------------------------------------- what is said


def test_an_episode_of_three_turns(chat, environment, scripted, play, call):
    turns = [
        call("bm25_search", query="moons mars", k=1),
        call("curate", document_ids=["mars"]) + "\n" + call("read_document", document_id="mars"),
        call("finish"),
    ]
    sampler = scripted({0: turns})
    [rollout] = play([environment()], sampler)
    assert (rollout.stop_reason, rollout.score.reward, rollout.score.outcome) == ("finish", 1.0, "complete")
    assert rollout.errors == []
    # Each prompt is the last one, what was sampled, and an answer.
    first, second, third = sampler.prompts[0]
    ids = sampler.sampled[0]
    assert first == chat.prompt_ids(environment().reset(), environment().tools)
    assert second[: len(first) + len(ids[0])] == [*first, *ids[0]]
    assert third[: len(second) + len(ids[1])] == [*second, *ids[1]]
    assert rollout.trajectory.tokens == [*third, *ids[2]]  # nothing follows the last turn
    answer = chat.decode(third[len(second) + len(ids[1]) :])
    assert answer.startswith("\n<|im_start|>user\n<tool_response>\n")
    assert answer.index('"added": ["mars"]') < answer.index('"document_id": "mars"')
    # The turns name their tokens; actions are these and no others, with the sampler's log-probs.
    spans = [turn.tokens for turn in rollout.turns]
    assert [tuple(rollout.trajectory.tokens[start:stop]) for start, stop in spans] == ids
    assert rollout.trajectory.action_tokens == sum(map(len, ids))
    actions = {i for start, stop in spans for i in range(start, stop)}
    assert rollout.trajectory.sample_logprobs == [
        -i / 4096 if i in actions else 0.0 for i in range(len(rollout.trajectory))
    ]
    assert [[c.name for c in turn.calls] for turn in rollout.turns] == [
        ["bm25_search"],
        ["curate", "read_document"],
        ["finish"],
    ]
    assert [turn.curated for turn in rollout.turns] == [(), ("mars",), ("mars",)]
    assert [hit.id for hit in rollout.turns[0].encountered] == ["mars"]


@pytest.mark.parametrize("search", [{"query": "moons mars"}, {"query": "notice"}])
def test_a_hostile_document_adds_no_action_call_or_reward(chat, environment, scripted, play, call, search):
    """It spells control tokens, closes the answer, calls tools and claims a reward: it stays a document."""
    sampler = scripted(
        {0: [call("bm25_search", **search), call("read_document", document_id="trap"), "Well.", "Well."]}
    )
    [rollout] = play([environment(max_turns=4)], sampler)
    assert "reward 1.0" in rollout.turns[1].observation
    assert [c.name for turn in rollout.turns for c in turn.calls] == ["bm25_search", "read_document"]
    assert (rollout.stop_reason, rollout.score.outcome, rollout.score.reward) == ("turns", "empty", -0.2)
    assert rollout.trajectory.action_tokens == sum(map(len, sampler.sampled[0]))
    # Four turns, each stopped once; control tokens come from the chat format alone.
    ends = rollout.trajectory.tokens.count(chat.stop_ids[0])
    assert ends == 2 + 4 + 3  # prompt: system, user; four turns; three answers


def test_a_turn_cut_by_the_token_limit_is_not_carried_out(chat, environment, scripted, play, call):
    search, finish = call("bm25_search", query="moons mars"), call("finish")
    limit = len(chat.encode(finish)) - 1
    sampler = scripted({0: [finish, search]})
    [rollout] = play([environment(max_turns=2)], sampler, max_turn_tokens=limit)
    assert rollout.stop_reason == "turns"
    assert rollout.turns[0].truncated
    [cut] = rollout.turns[0].calls
    assert (cut.name, cut.ok) == ("", False)
    assert "malformed_call" in cut.outcome
    assert "the token limit cut it off" in rollout.turns[0].observation
    # The stop token that the turn lacks is written by the format: no action.
    after = rollout.turns[0].tokens[1]
    assert rollout.trajectory.tokens[after] == chat.stop_ids[0]
    assert rollout.trajectory.action_mask[after] == 0
    assert len(sampler.sampled[0][0]) == limit


def test_an_episode_is_truncated_if_its_last_turn_is(chat, environment, scripted, play, call):
    whole = play([environment(max_turns=2)], scripted({0: ["word " * 300, "done"]}), max_turn_tokens=16)[0]
    cut = play([environment(max_turns=2)], scripted({0: ["done", "word " * 300]}), max_turn_tokens=16)[0]
    assert (whole.truncated, cut.truncated) == (False, True)


def test_mistakes_are_answered_and_the_episode_goes_on(environment, scripted, play, call):
    turns = [
        '<tool_call>\n{"name": "bm25_search", "arguments": {"query": "a\n</tool_call>',
        call("bm25-search", query="moons"),
        call("") + call("grep_corpus", pattern="("),
        "no call at all",
        call("bm25_search", query="moons mars"),
        call("curate", document_ids=["mars", "made-up"]) + call("finish"),
    ]
    [rollout] = play([environment()], scripted({0: turns}))
    assert (rollout.stop_reason, rollout.score.reward) == ("finish", 1.0)
    words = (
        "invalid JSON",
        "The tools are: bm25_search",
        "missing",
        "Every turn must call a tool",
        "Phobos",
        "made-up",
    )
    for turn, word in zip(rollout.turns, words, strict=True):
        assert word in turn.observation


def test_finish_ends_it(environment, scripted, play, call):
    turns = [call("bm25_search", query="moons mars") + call("finish") + call("curate", document_ids=["mars"])]
    sampler, episode = scripted({0: turns}), environment()
    [rollout] = play([episode], sampler)
    assert (rollout.stop_reason, rollout.score.outcome) == ("finish", "empty")
    assert rollout.turns[0].calls[2].outcome == "not_executed"
    assert len(sampler.prompts[0]) == 1
    with pytest.raises(RuntimeError, match="the episode is over"):
        episode.step(None)
    assert episode.score() == rollout.score


# ----------------------------------------------------------------------------------------------------------- its length


@pytest.mark.parametrize(("capacity", "reason", "asked"), [(-1, "context", 1), (0, "context", 1), (1, "turns", 2)])
def test_the_last_position(chat, scripted, play, capacity, reason, asked):
    """An answer that leaves room for one token is taken; one that fills the context or outgrows it ends the episode."""
    prompt = len(chat.prompt_ids([Message("user", "go ")], []))
    turn = len(chat.encode("hello")) + 1
    answer = len(chat.observation_ids([Message("tool", "turn 1")], stopped=True))
    sampler = scripted({0: ["hello"]}, capacity=prompt + turn + answer + capacity)
    [rollout] = play([Steps(2)], sampler)
    assert (rollout.stop_reason, len(sampler.prompts[0])) == (reason, asked)
    assert rollout.score.reward == float(asked)  # scored on what it did
    assert len(rollout.trajectory) <= sampler.capacity
    assert rollout.truncated is (reason == "turns")  # the one token was no stop token


def test_an_episode_out_of_context_is_scored_on_what_it_curated(environment, scripted, play, call):
    turns = [
        call("bm25_search", query="moons mars"),
        call("curate", document_ids=["mars"]) + call("bm25_search", query="owls night"),
    ]
    [roomy] = play([environment(max_turns=3)], scripted({0: turns}))
    answer = roomy.trajectory.spans[4]
    assert answer.kind == "observation"
    sampler = scripted({0: turns}, capacity=answer.stop)  # no room for a turn after the second answer
    [rollout] = play([environment(max_turns=3)], sampler)
    assert (rollout.stop_reason, rollout.score.reward) == ("context", 1.0)
    assert rollout.trajectory.tokens == roomy.trajectory.tokens[: answer.start]
    assert rollout.turns[1].curated == ("mars",)


@pytest.mark.parametrize(("spare", "reason"), [(-5, "context"), (0, "context"), (1, "turns")])
def test_a_prompt_that_leaves_no_room_is_not_asked(chat, scripted, play, spare, reason):
    sampler = scripted({0: ["hello"]}, capacity=len(chat.prompt_ids([Message("user", "go ")], [])) + spare)
    [rollout] = play([Steps(1)], sampler)
    assert rollout.stop_reason == reason
    assert (rollout.trajectory.action_tokens, rollout.score.reward) == ((0, 0.0) if spare < 1 else (1, 1.0))


# ------------------------------------------------------------------------------------------------ many episodes at once


def episodes(lengths):
    """Environments of so many turns, and turns of different lengths for each."""
    texts = {uid: [f"{'word ' * (1 + 5 * ((uid + n) % 4))}" for n in range(9)] for uid in range(len(lengths))}
    return [Steps(n, name=str(uid)) for uid, n in enumerate(lengths)], texts


@pytest.mark.parametrize("slots", [1, 2, 7, 20])
@pytest.mark.parametrize("deterministic", [True, False])
def test_every_episode_gives_one_rollout_however_many_slots(scripted, play, slots, deterministic):
    lengths = [3, 1, 4, 1, 5, 2, 6]
    environments, texts = episodes(lengths)
    expected = play(environments, scripted(texts, slots=7))
    assert [r.score.reward for r in expected] == [float(n) for n in lengths]

    environments, texts = episodes(lengths)
    sampler, finished = scripted(texts, slots=slots, pace=4), []
    settings = {"deterministic": deterministic, "tool_threads": 3}
    rollouts = play(environments, sampler, ended=lambda uid, rollout: finished.append(uid), **settings)
    assert facts(rollouts) == facts(expected)
    assert sorted(finished) == [*range(len(lengths))]
    first = [uid for what, uid in sampler.log if what == "submit"]
    assert list(dict.fromkeys(first)) == list(range(7))  # admitted in order
    if slots == 1:
        assert first == [uid for uid, n in enumerate(lengths) for _ in range(n)]


def test_deterministic_order_does_not_depend_on_who_is_faster(scripted, play):
    """The log of everything that the sampler saw repeats, whichever tool is slow."""

    def logged(slow):
        pause = threading.Event()
        environments, texts = episodes([2, 3, 2, 1])
        environments[slow].before = lambda turn: pause.wait(0.05)
        sampler = scripted(texts, slots=3, pace=6)
        play(environments, sampler, deterministic=True, tool_threads=4)
        return sampler.log

    assert logged(0) == logged(1) == logged(2)


def test_tools_run_while_others_decode(scripted, play):
    """A slow tool waits until the other episode has been polled twice more: only a loop that goes on gets there."""
    polled = threading.Semaphore(0)

    def slow(turn):
        for _ in range(2):
            assert polled.acquire(timeout=20)

    sampler = scripted({0: ["hi"], 1: ["word " * 40]}, pace=4)
    poll = sampler.poll

    def counted():
        results = poll()
        if sampler.log[-1] == ("poll", (1,)):
            polled.release()
        return results

    sampler.poll = counted
    rollouts = play([Steps(1, slow), Steps(2)], sampler, deterministic=False)
    assert [r.score.reward for r in rollouts] == [1.0, 2.0]
    assert [r.errors for r in rollouts] == [[], []]


def test_a_slow_first_tool_and_a_fast_second(scripted, play):
    """The second episode's tool ends first, and lets the first one's go on: its next turn does not wait."""
    second_done = threading.Event()

    def wait(turn):
        assert second_done.wait(timeout=20)

    def tell(turn):
        if turn == 1:
            second_done.set()

    sampler = scripted({0: ["slow"], 1: ["fast"]})
    rollouts = play([Steps(1, wait), Steps(3, tell)], sampler, deterministic=False, tool_threads=2)
    assert [r.score.reward for r in rollouts] == [1.0, 3.0]
    assert [r.errors for r in rollouts] == [[], []]


def test_one_environment_an_episode(environment, scripted, play, call):
    """Sixteen episodes at once curate different documents; no set holds another's."""
    names = ["mars", "owl", "tea"]
    texts = {
        uid: [call("grep_corpus", pattern="."), call("curate", document_ids=[names[uid % 3]]) + call("finish")]
        for uid in range(16)
    }
    for deterministic in (True, False):
        rollouts = play([environment() for _ in range(16)], scripted(texts, slots=16), deterministic=deterministic)
        assert [r.turns[-1].curated for r in rollouts] == [(names[uid % 3],) for uid in range(16)]


def test_seconds_are_recorded(scripted, play):
    pause = threading.Event()
    [rollout] = play([Steps(2, lambda turn: pause.wait(0.02))], scripted({0: ["hello"]}))
    assert [turn.seconds_tools >= 0.02 for turn in rollout.turns] == [True, True]
    assert all(turn.seconds_model > 0 for turn in rollout.turns)
    assert rollout.seconds >= sum(turn.seconds_tools + turn.seconds_model for turn in rollout.turns)
