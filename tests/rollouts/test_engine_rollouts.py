"""The real engine, index, tokenizer and environment: what an episode samples depends on nothing but itself."""

import threading
import zlib
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import CuratedConfig, LoraConfig, SamplingConfig
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.models.decoder import build_model, init_lora
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.tiny import write_tiny_checkpoint
from jaxsearchrl.rollouts.collect import collect
from jaxsearchrl.sampling.engine import Engine
from jaxsearchrl.tasks.curated.data import Fact, Task
from jaxsearchrl.tasks.curated.environment import CuratedEnvironment

CONFIG = SamplingConfig(
    slots=3,
    capacity=768,
    max_turn_tokens=20,
    extend_chunks=3,
    chunk_tokens=32,
    decode_steps=6,
    read_block=128,
    tool_threads=4,
)
TASKS = [
    Task("q1", "Which moons has Mars?", (Fact("phobos", ("mars",)),)),
    Task("q2", "How far does an owl turn its head?", (Fact("degrees", ("owl",)),)),
    Task("q3", "How is black tea made?", (Fact("boil", ("tea",)),)),
]
SEARCHES = [
    ToolCall("bm25_search", {"query": "moons of Mars, an owl's head, black tea leaves"}),
    ToolCall("grep_corpus", {"pattern": "owl|Mars|tea"}),
]
CHOICES = [
    ToolCall("curate", {"document_ids": ["mars"]}),
    ToolCall("curate", {"document_ids": ["mars", "owl"]}),
    ToolCall("curate", {"document_ids": ["tea"]}),
    ToolCall("finish", {}),
]
OPTIONS = CuratedConfig(max_turns=4, max_observation_tokens=60, compact_results=True)


class Translated(CuratedEnvironment):
    """Takes the noise of a random model for a search and a choice, so that episodes differ in turns and rewards.

    The noise is another on another machine: whatever it is, most episodes must find documents and choose among them.
    """

    pause = staticmethod(lambda: None)

    def step(self, turn):
        self.pause()
        number = zlib.crc32(turn.text.encode())
        return super().step(AssistantTurn(turn.text, calls=(SEARCHES[number % 2], CHOICES[number // 2 % 4])))


@pytest.fixture(scope="module")
def weights(chat, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_tiny_checkpoint(folder, "llama", vocab_size=chat.vocab_size, eos_ids=chat.stop_ids)
    checkpoint = open_checkpoint(folder)
    model = build_model(checkpoint.architecture, LoraConfig(rank=2))
    rng = np.random.default_rng(0)
    lora = {n: v + jnp.asarray(rng.normal(size=v.shape) * 0.05, v.dtype) for n, v in init_lora(model, 0).items()}
    return model, load_base(model, checkpoint), lora


@pytest.fixture(scope="module")
def rolled(chat, index, weights):
    """Plays tasks; the same engine throughout, renewed each time."""
    model, base, lora = weights
    engine = Engine(model, base, lora, CONFIG, stop_ids=chat.stop_ids, vocab_size=chat.vocab_size, seed=0)

    def roll(tasks=TASKS, tries=4, seed=5, temperature=1.0, pause=lambda task: None, **settings):
        def new(task):
            environment = Translated(task, index, index, OPTIONS, chat.count_tokens)
            environment.pause = lambda: pause(task)
            return environment

        engine.renew(lora, seed)
        return collect(tasks, tries, new, engine, chat, replace(CONFIG, **settings), temperature=temperature)

    return roll


@pytest.fixture(scope="module")
def expected(rolled):
    return facts(rolled())


def facts(rollouts):
    """All of a list of rollouts but its times."""
    return [(r.trajectory, r.score, r.stop_reason, [t.observation for t in r.turns]) for r in rollouts]


def test_the_episodes_are_worth_comparing(expected):
    """Several turns, different endings and rewards within groups, different lengths, stop tokens and cut turns."""
    assert len({reason for _, _, reason, _ in expected}) >= 2
    assert len({len(trajectory) for trajectory, _, _, _ in expected}) > 6
    for group in range(3):
        tries = expected[4 * group : 4 * group + 4]
        assert len({str(trajectory.tokens) for trajectory, _, _, _ in tries}) == 4
    assert len({score.reward for _, score, _, _ in expected}) >= 3


def test_rollouts_repeat_bit_for_bit(rolled, expected):
    assert facts(rolled()) == expected


def test_another_seed_samples_other_episodes(rolled, expected):
    others = facts(rolled(seed=6))
    assert all(a[0].tokens != b[0].tokens for a, b in zip(others, expected, strict=True))


def test_the_timing_of_tools_changes_nothing(rolled, expected):
    """Without the deterministic order each tool takes its own time; the episodes are the same bits."""
    clock, turns = threading.Event(), {"q1": 0.02, "q2": 0.0, "q3": 0.005}
    rollouts = rolled(deterministic=False, pause=lambda task: clock.wait(turns[task.id]))
    assert facts(rollouts) == expected


def test_a_group_alone_equals_the_group_among_others(rolled, expected):
    assert facts(rolled(TASKS[:1])) == expected[:4]


def test_one_try_equals_the_first_of_its_group(rolled, expected):
    assert facts(rolled(TASKS[:1], tries=1)) == expected[:1]


def test_greedy_tries_of_a_group_are_equal(rolled):
    first, *others = facts(rolled(TASKS[:1], tries=3, temperature=0.0))
    assert others == [first, first]


def test_log_probs_are_recorded_for_sampled_tokens_only(expected):
    for trajectory, _, _, _ in expected:
        assert all((p < 0) == bool(a) for p, a in zip(trajectory.sample_logprobs, trajectory.action_mask, strict=True))
