"""How long a run would take on a target, and what it would cost: rooflines of what was counted by hand.

Nothing was measured. A roofline is the least time that products and memory allow; real programs take longer. An episode
is taken to fill its slot, with turns and observations at their limits; shorter ones take less.
"""

import math
from dataclasses import dataclass

from jaxsearchrl.config import Config, GSM8KConfig
from jaxsearchrl.models.decoder import Model
from jaxsearchrl.planning.costs import Work, decode_step, extend_call, learner_batch, rows_on_chip, slots_on_chip
from jaxsearchrl.planning.programs import Arrays, Program
from jaxsearchrl.planning.targets import Chip


@dataclass(frozen=True)
class Episode:
    """The longest that the settings allow: tokens in all, and of these the sampled ones."""

    tokens: int
    sampled: int


@dataclass(frozen=True)
class Phases:
    """Work of one chip: a prefilled token, a decode step of all slots, a full row of the learner."""

    prefill: Work
    decode: Work
    row: Work


@dataclass(frozen=True)
class Times:
    """Seconds of each of `Phases`, and of one update of the adapter."""

    prefill: float
    decode: float
    row: float
    update: float = 0.0


@dataclass(frozen=True)
class RunEstimate:
    """Seconds of a step and of one evaluation, hours of the run, and tokens a second: sampled, and in all of a step."""

    rollouts: float
    learning: float
    evaluation: float
    hours: float
    sampled_per_second: float
    tokens_per_second: float


def longest_episode(config: Config) -> Episode:
    """A slot's tokens; sampled are as many of them as one turn's limit is of a turn and its observation together."""
    tokens, turn = config.sampling.capacity, config.sampling.max_turn_tokens
    if isinstance(config.task, GSM8KConfig):  # one turn
        return Episode(tokens, turn)
    return Episode(tokens, round(tokens * turn / (turn + config.task.max_observation_tokens)))


def count_phases(model: Model, config: Config, arrays: Arrays) -> Phases:
    """By hand; caches are read at half a slot's length, which is their mean over an episode that fills it."""
    sampling, learning, episode = config.sampling, config.learning, longest_episode(config)
    context = sampling.capacity / 2
    banks = sampling.slots // slots_on_chip(arrays)  # each with chunks of its own in a call
    prefilled = banks * sampling.extend_chunks * sampling.chunk_tokens
    actions = rows_on_chip(arrays) * learning.pack_tokens * episode.sampled / episode.tokens
    return Phases(
        prefill=extend_call(model, arrays, sampling, context) * (1 / prefilled),
        decode=decode_step(model, arrays, sampling, context),
        row=learner_batch(model, arrays, learning, actions) * (1 / learning.pack_rows),
    )


def roofline(phases: Phases, chip: Chip, update: Program) -> Times:
    """Of the phases on a chip; that of the update is the TPU compiler's own estimate, where there is one."""
    rates = (chip.bfloat16, chip.float32, chip.bandwidth)
    prefill, decode, row = (work.seconds(*rates) for work in (phases.prefill, phases.decode, phases.row))
    return Times(prefill, decode, row, update.estimate or 0.0)


def estimate_run(config: Config, times: Times) -> RunEstimate:
    """Of `train.steps` steps with their evaluations; without tools, host, compiling, loading, saving and warm start."""
    train, learning, episode = config.train, config.learning, longest_episode(config)
    episodes = train.groups_per_step * train.group_size
    rollouts = _rollouts(config, episodes, times)
    rows = max(1, math.ceil(episodes * episode.tokens / learning.pack_tokens))
    learnt = rows * times.row + learning.updates_per_step * times.update
    evaluation = _rollouts(config, config.eval.tasks * config.eval.tries, times)
    if config.eval.greedy:
        evaluation += _rollouts(config, config.eval.tasks, times)
    evaluations = 1 + math.ceil(train.steps / config.eval.every) if config.eval.every else 0  # one before the first
    return RunEstimate(
        rollouts=rollouts,
        learning=learnt,
        evaluation=evaluation,
        hours=(train.steps * (rollouts + learnt) + evaluations * evaluation) / 3600,
        sampled_per_second=config.sampling.slots / times.decode,
        tokens_per_second=episodes * episode.tokens / (rollouts + learnt),
    )


def _rollouts(config: Config, episodes: int, times: Times) -> float:
    """Seconds of so many episodes: each token that is not sampled is prefilled, and slots decode together."""
    episode = longest_episode(config)
    steps = max(1.0, episodes / config.sampling.slots) * episode.sampled
    return episodes * (episode.tokens - episode.sampled) * times.prefill + steps * times.decode
