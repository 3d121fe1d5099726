"""The tiny real decoder, and rows that share as much as rows can."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.learning.packing import row_from
from jaxsearchrl.models.architecture import Architecture, Rope
from jaxsearchrl.models.decoder import build_model, init_lora
from jaxsearchrl.trajectory import Trajectory

ARCH = Architecture("qwen2", 61, 24, 2, 9, 3, 4, 32, 1e-5, True, True, False, False, 128, Rope())


def make_tiny(dtype=jnp.float32):
    """Two layers, nine heads over three, LoRA that is not zero, two rows of vocabulary above the tokenizer's."""
    model = build_model(ARCH, LoraConfig(rank=3), dtype)
    rng = np.random.default_rng(0)
    base = {n: jnp.asarray(rng.normal(size=s.shape) * 0.4, s.dtype) for n, s in model.specs.items()}
    lora = {n: v + jnp.asarray(rng.normal(size=v.shape) * 0.1, v.dtype) for n, v in init_lora(model, 0).items()}
    return SimpleNamespace(model=model, base=base, lora=lora, vocab_size=59)


def make_rows():
    """A group with equal first actions, one of them a beginning of another; a group with twins; two loners."""
    tools = [3, 1, 4, 1, 5, 9]
    easy, hard = [*tools, 26, 5, 35], [*tools, 8, 9, 7]
    first, answer = [20, 21, 22, 7], [40, 41, 42, 43]
    return [
        make_row(0, 0.7, easy, first, answer, [30, 31, 7]),
        make_row(1, -0.4, easy, first, answer, [30, 50, 51, 7]),
        make_row(2, 0.2, easy, first, [40, 44], [32, 7]),
        make_row(3, -0.5, easy, first),
        make_row(4, 0.3, hard, [33, 34, 7]),
        make_row(5, -0.9, hard, [33, 34, 7]),
        make_row(6, 0.6, hard, [20], [45], [46, 47, 7]),
        make_row(7, 1.1, [2], [10, 11, 12]),
        make_row(8, -0.2, [50, 51], list(range(10, 30)), [6, 6]),
    ]


def make_row(uid, advantage, prompt, *turns):
    """turns: sampled ids and observations, in turn; the sampling log-probs are random."""
    trajectory = Trajectory()
    trajectory.append_prompt(prompt)
    for number, ids in enumerate(turns):
        if number % 2:
            trajectory.append_observation(ids)
        else:
            trajectory.append_sampled(ids, -np.random.default_rng([uid, number]).uniform(2, 5, len(ids)))
    return row_from(uid, trajectory, advantage)


@pytest.fixture(scope="session")
def tiny():
    return make_tiny()


@pytest.fixture(scope="session")
def tiny_bfloat16():
    return make_tiny(jnp.bfloat16)


@pytest.fixture
def rows():
    return make_rows()


@pytest.fixture(scope="session")
def new_row():
    return make_row
