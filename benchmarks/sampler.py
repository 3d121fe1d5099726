"""Workloads of the sampler: decoding alone (w1), and whole episodes of one question (w2).

There are no stop ids, so that every length is exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.measure import measured
from benchmarks.shapes import random_model
from jaxsearchrl.config import SamplingConfig
from jaxsearchrl.models.decoder import Model, Weights
from jaxsearchrl.sampling.contract import SampleRequest
from jaxsearchrl.sampling.engine import Counters, Engine

Figures = dict[str, float]


@dataclass(frozen=True)
class Decode:
    """`rows` trajectories with prompts of their own, `new` tokens each."""

    rows: int = 8
    prompt: int = 256
    new: int = 128


@dataclass(frozen=True)
class Episode:
    """`rows` tries at one question: a shared prompt, turns of `sampled` tokens with `observed` ones between them."""

    rows: int = 8
    prompt: int = 768
    turns: int = 4
    sampled: int = 48
    observed: int = 192

    @property
    def length(self) -> int:
        """Tokens of one trajectory at its end."""
        return self.prompt + self.turns * self.sampled + (self.turns - 1) * self.observed


def run_decode(size: str, work: Decode) -> Figures:
    """Prefill (with its first token) and decode are timed apart. The first call is the engine's construction."""
    model = random_model(size)
    vocab_size = model[0].arch.vocab_size
    with measured() as first:
        engine = _engine(model, work.rows, work.prompt + 1 + work.new)
    _turn(engine, _prompts(vocab_size, range(work.rows), work.prompt // 2), 1)
    _release(engine, range(work.rows))
    uids = range(work.rows, 2 * work.rows)
    tokens = _prompts(vocab_size, uids, work.prompt)
    with measured() as prefill:
        tokens = _turn(engine, tokens, 1)
    with measured() as decode:
        _turn(engine, tokens, work.new)
    return {
        "tokens/s": work.rows * work.new / decode.seconds,
        "ms/step": 1000 * decode.seconds / work.new,
        "CPU ms/step": 1000 * decode.cpu_seconds / work.new,
        "CPU s": decode.cpu_seconds,
        "prefill tokens/s": work.rows * (work.prompt - 1) / prefill.seconds,
        "first call s": first.seconds,
        "compilations": first.compilations,
        "compilations later": prefill.compilations + decode.compilations,
    }


def run_episode(size: str, work: Episode) -> Figures:
    """Two episodes: the measured one, then one of other lengths, which must compile nothing.

    written tokens: what `extend` computed. The least possible is the prompt and every observation once, `ideal tokens`.
    The prompt's last token goes through decode, so it is one less; an observation's last token does so too, but then
    the last token that was sampled before it is written in its place.
    """
    model = random_model(size)
    vocab_size = model[0].arch.vocab_size
    with measured() as first:
        engine = _engine(model, work.rows, work.length)
    before = replace(engine.counters)
    with measured() as episode:
        _episode(engine, vocab_size, range(work.rows), work)
    done = _difference(engine.counters, before)
    other = replace(work, prompt=work.prompt // 3, turns=2, sampled=work.sampled // 3, observed=work.observed // 2 + 1)
    with measured() as second:
        _episode(engine, vocab_size, range(work.rows, 2 * work.rows), other)
    return {
        "CPU s": episode.cpu_seconds,
        "seconds": episode.seconds,
        "tokens/s": work.rows * work.length / episode.seconds,
        "prompt tokens": done["prompt_tokens"],
        "observation tokens": done["observation_tokens"],
        "written tokens": done["prompt_tokens"] + done["observation_tokens"],
        "ideal tokens": work.prompt + work.rows * (work.turns - 1) * work.observed,
        "forked tokens": done["forked_tokens"],
        "sampled tokens": done["sampled_tokens"],
        "first call s": first.seconds,
        "compilations": first.compilations,
        "compilations later": episode.compilations + second.compilations,
    }


def _engine(model: tuple[Model, Weights, Weights], rows: int, capacity: int) -> Engine:
    config = SamplingConfig(slots=rows, capacity=capacity)
    return Engine(*model, config, stop_ids=(), vocab_size=model[0].arch.vocab_size, seed=0)


def _prompts(vocab_size: int, uids: Sequence[int], length: int) -> dict[int, list[int]]:
    """A prompt of its own for each trajectory."""
    return {uid: np.random.default_rng(uid).integers(0, vocab_size, length).tolist() for uid in uids}


def _turn(engine: Engine, tokens: Mapping[int, list[int]], limit: int) -> dict[int, list[int]]:
    """Samples `limit` tokens for each trajectory and returns these longer."""
    for uid, ids in tokens.items():
        engine.submit(SampleRequest(uid, ids, limit, 1.0))
    longer = {}
    while len(longer) < len(tokens):
        longer |= {result.uid: [*tokens[result.uid], *result.ids] for result in engine.poll()}
    return longer


def _episode(engine: Engine, vocab_size: int, uids: Sequence[int], work: Episode) -> None:
    rng = np.random.default_rng(uids[0])
    prompt = rng.integers(0, vocab_size, work.prompt).tolist()
    tokens = {uid: list(prompt) for uid in uids}
    for turn in range(work.turns):
        tokens = _turn(engine, tokens, work.sampled)
        if turn + 1 < work.turns:
            observed = rng.integers(0, vocab_size, (len(uids), work.observed)).tolist()
            tokens = {uid: tokens[uid] + new for uid, new in zip(uids, observed, strict=True)}
    _release(engine, uids)


def _release(engine: Engine, uids: Sequence[int]) -> None:
    for uid in uids:
        engine.release(uid)


def _difference(after: Counters, before: Counters) -> dict[str, int]:
    return {name: value - asdict(before)[name] for name, value in asdict(after).items()}
