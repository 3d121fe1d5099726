"""The learner's workload (w3): rows of which half the tokens are actions, forward, backward and update."""

from dataclasses import dataclass

import jax
import numpy as np

from benchmarks.measure import measured
from benchmarks.shapes import random_model
from jaxsearchrl.config import LearningConfig
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import TrainRow, pack


@dataclass(frozen=True)
class Learn:
    """`rows` trajectories of `tokens` tokens, worked on `pack_rows` at a time."""

    rows: int = 2
    tokens: int = 1024
    pack_rows: int = 2


def run_learner(size: str, work: Learn) -> dict[str, float]:
    """The first step compiles; the second, of full rows, is measured; a third of shorter rows must compile nothing."""
    model, base, lora = random_model(size)
    vocab_size = model.arch.vocab_size
    learner = Learner(model, base, policy_loss(LearningConfig()), vocab_size=vocab_size, temperature=1.0)
    optimizer = make_optimizer(LearningConfig(), total_steps=10)
    update = make_update(optimizer)
    opt_state = optimizer.init(lora)

    def step(rows: list[TrainRow]) -> None:
        nonlocal lora, opt_state
        batches = pack(rows, pack_rows=work.pack_rows, pack_tokens=work.tokens).batches
        grads, stats = learner.gradient(lora, batches, len(rows) * 1024.0)
        lora, opt_state, done = update(grads, opt_state, lora)
        jax.block_until_ready((lora, opt_state, done, stats))

    full = _rows(vocab_size, work.rows, work.tokens)
    with measured() as first:
        step(full[: work.pack_rows])
    with measured() as second:
        step(full)
    with measured() as shorter:
        step(_rows(vocab_size, work.pack_rows, work.tokens // 3))
    return {
        "tokens/s": work.rows * work.tokens / second.seconds,
        "tokens/CPU s": work.rows * work.tokens / second.cpu_seconds,
        "CPU s": second.cpu_seconds,
        "seconds": second.seconds,
        "first call s": first.seconds,
        "compilations": first.compilations,
        "compilations later": second.compilations + shorter.compilations,
    }


def _rows(vocab_size: int, rows: int, tokens: int) -> list[TrainRow]:
    """Observations and turns of an eighth each, in turn. The sampling log-probs are those of a uniform policy."""
    rng = np.random.default_rng(0)
    mask = np.arange(tokens) // max(tokens // 8, 1) % 2 == 1
    return [
        TrainRow(
            uid=uid,
            tokens=rng.integers(0, vocab_size, tokens, np.int32),
            action_mask=mask,
            sampled=mask,
            sample_logprobs=np.where(mask, -np.log(vocab_size), 0.0).astype(np.float32),
            routes=np.zeros(tokens, np.uint32),
            advantage=1.0 if uid % 2 else -1.0,
        )
        for uid in range(rows)
    ]
