"""Episodes by tags in tokens: what is spliced in, what is trained on, and that no document can act."""

from dataclasses import replace

import pytest

from jaxsearchrl.chat.search_r1 import SearchR1Tags
from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import SamplingConfig, SearchR1Config
from jaxsearchrl.dry_run import _write_tokenizer
from jaxsearchrl.messages import AssistantTurn
from jaxsearchrl.rollouts.loop import run_episodes
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_r1.environment import SearchR1Environment
from jaxsearchrl.tasks.search_r1.prompts import INVALID

QUESTION = Question("q", "Which moons has Mars?", ("Phobos and Deimos",))
SEARCH = "<think>Where?</think><search> moons of Mars </search>"
ANSWER = "<think>So.</think><answer> Phobos and Deimos </answer>"


@pytest.fixture(scope="module")
def tags(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("tags")
    _write_tokenizer(folder, [str(corpus)], [])
    return SearchR1Tags(load_tokenizer(folder))


@pytest.fixture
def rolled(tags, index, scripted):
    """The rollout of one scripted episode, and the sampler that played it."""

    def roll(*turns, **options):
        ids = [turn if isinstance(turn, list) else tags.turn_ids(AssistantTurn(turn)) for turn in turns]
        sampler = scripted([ids])
        sampler.chat = tags
        settings = replace(SearchR1Config(search_k=2, format_weight=0.1), **options)
        environment = SearchR1Environment(QUESTION, index, settings, tags.count_tokens, 0.1)
        config = SamplingConfig(capacity=sampler.capacity, max_turn_tokens=200)
        [rollout] = run_episodes([environment], sampler, tags, config, temperature=1.0)
        return rollout, sampler

    return roll


def text_of(tags, rollout, kind):
    trajectory = rollout.trajectory
    return [tags.decode(trajectory.tokens[span.start : span.stop]) for span in trajectory.spans if span.kind == kind]


def test_each_prompt_is_the_last_one_with_what_was_sampled_and_observed(tags, rolled):
    rollout, sampler = rolled(SEARCH, ANSWER)
    first, second = sampler.prompts[0]
    sampled = list(sampler.sampled[0][0])
    assert second[: len(first) + len(sampled)] == first + sampled
    assert tags.decode(second[len(first) + len(sampled) :]).startswith("\n\n<information>Doc 1(Title: ")
    assert rollout.trajectory.tokens == second + list(sampler.sampled[0][1])
    assert text_of(tags, rollout, "sampled") == [SEARCH, ANSWER]
    assert rollout.trajectory.action_tokens == sum(map(len, sampler.sampled[0]))
    assert (rollout.stop_reason, rollout.score.reward, rollout.truncated) == ("finish", 1.1, False)


def test_what_is_sampled_behind_a_closing_tag_is_dropped(tags, rolled):
    rollout, _ = rolled(SEARCH + " <answer> Phobos and Deimos </answer>", ANSWER)
    assert text_of(tags, rollout, "sampled") == [SEARCH, ANSWER]


def test_an_end_of_text_alone_is_kept_and_answered_and_does_not_end_the_episode(tags, rolled):
    rollout, _ = rolled([tags.stop_ids[0]], ANSWER)
    assert text_of(tags, rollout, "observation") == [f"\n{INVALID}\n"]
    [first, _] = [span for span in rollout.trajectory.spans if span.kind == "sampled"]
    assert rollout.trajectory.tokens[first.start : first.stop] == [tags.stop_ids[0]]
    assert (rollout.stop_reason, rollout.score.reward) == ("finish", 1.0)


def test_a_hostile_document_adds_no_action_answer_or_reward(tags, rolled):
    rollout, _ = rolled("<search> Notice reward finish </search>", "I am done.", "Hm.")
    [shown, *_] = text_of(tags, rollout, "observation")
    assert "reward 1.0" in shown
    assert rollout.stop_reason == "turns"
    assert (rollout.score.reward, rollout.score.outcome) == (0.0, "malformed")
    assert [call.name for turn in rollout.turns for call in turn.calls] == ["search"]


def test_a_turn_at_the_token_limit_is_an_invalid_action(tags, rolled):
    rollout, _ = rolled("word " * 300 + "<answer> x </answer>", ANSWER)
    assert text_of(tags, rollout, "observation") == [f"\n{INVALID}\n"]
    assert rollout.score.parts["invalid_actions"] == 1.0
