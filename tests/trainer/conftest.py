"""Tiny runs, and one of six steps that nothing interrupted, to which others are compared."""

import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxsearchrl import trainer
from jaxsearchrl.config import ChatConfig, Config, CuratedConfig, LoraConfig, TelemetryConfig
from jaxsearchrl.config_checks import validate
from jaxsearchrl.config_tree import to_json, with_values
from jaxsearchrl.dry_run import dry_run_config
from jaxsearchrl.experiment import Experiment
from jaxsearchrl.records import read_records, record_steps
from jaxsearchrl.telemetry.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
PROCESS = Path(__file__).with_name("process.py")


@pytest.fixture(scope="session")
def parts():
    """What process.py defines."""
    return runpy.run_path(str(PROCESS))


@pytest.fixture(scope="session", autouse=True)
def cache_dir(tmp_path_factory):
    """One compilation cache for these tests and the processes that they start."""
    folder = tmp_path_factory.mktemp("xla")
    settings = {"jax_compilation_cache_dir": str(folder), "jax_persistent_cache_min_compile_time_secs": 0.0}
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is settings:
            yield folder


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Six steps of two groups of two; eight tasks, so that step 5 begins the second epoch."""
    task = CuratedConfig(compact_results=True, max_turns=2, max_observation_tokens=64)
    tiny = dry_run_config(
        Config(name="tiny", task=task, chat=ChatConfig(terse_tools=True)), tmp_path_factory.mktemp("files")
    )
    sampling = replace(tiny.sampling, slots=3, capacity=768, max_turn_tokens=16, decode_steps=8)
    tiny = replace(
        tiny,
        lora=LoraConfig(rank=2),
        sampling=sampling,
        learning=replace(tiny.learning, pack_tokens=768, loss_constant=64.0, learning_rate=1e-3),
        train=replace(tiny.train, steps=6, epochs=2, group_size=2),
        eval=replace(tiny.eval, every=2),
        checkpoint=replace(tiny.checkpoint, every=3),
        telemetry=TelemetryConfig(tensorboard=False, plots=False),
    )
    validate(tiny)
    return tiny


@pytest.fixture
def with_letter_e(monkeypatch, parts):
    """Runs of this process get the reward of process.py."""
    monkeypatch.setattr(Experiment, "environment", parts["letter_e"])


@pytest.fixture
def train(config, with_letter_e):
    """Trains in this process; keywords are settings, with __ for the dot."""

    def run(workdir, base=config, **settings):
        trainer.train(with_values(base, {key.replace("__", "."): value for key, value in settings.items()}), workdir)

    return run


@pytest.fixture(scope="session")
def process(cache_dir, tmp_path_factory):
    """Trains in a process of its own."""

    def run(config, workdir, *stop):
        file = tmp_path_factory.mktemp("config") / "config.json"
        file.write_text(to_json(config))
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(cache_dir),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, str(PROCESS), "train", str(file), str(workdir), *map(str, stop)]
        return subprocess.run(command, env=env, capture_output=True, text=True)

    return run


@pytest.fixture(scope="session")
def straight(config, process, tmp_path_factory):
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("straight")
    result = process(config, folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="session")
def state():
    """The arrays of a run's newest checkpoint, by path."""

    def read(folder):
        newest = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
        tree = ocp.StandardCheckpointer().restore(newest / "state")
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    return read


@pytest.fixture(scope="session")
def left_behind(state):
    """All that a run left and that must not depend on how often it was stopped: no times, and no compilations."""

    def timeless(record):
        turns = tuple(replace(turn, seconds_model=0.0, seconds_tools=0.0) for turn in record.turns)
        return replace(record, seconds=0.0, turns=turns)

    def read(folder):
        timed = ("seconds/", "speed/", "episode_seconds/", "compilations")
        splits = ("train", "eval", "eval_greedy")
        return {
            "state": {name: leaf.tobytes() for name, leaf in state(folder).items()},
            "metrics": [
                {key: value for key, value in row.items() if not key.startswith(timed)} for row in read_metrics(folder)
            ],
            "rollouts": {
                (split, step): [timeless(record) for record in read_records(folder, split, step)]
                for split in splits
                for step in record_steps(folder, split)
            },
        }

    return read
