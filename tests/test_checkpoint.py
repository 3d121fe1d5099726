"""Checkpoints: bit-equal, complete or absent, and clear about what does not fit."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxsearchrl.checkpoint import Checkpoints
from jaxsearchrl.errors import UserError

HOST = {"step": 1, "rng": np.random.default_rng(3).bit_generator.state, "config": {"train": {"seed": 42}}}


def make_state(seed: int = 0, *, rank: int = 4, dtype: Any = jnp.float32) -> dict[str, Any]:
    """A LoRA tree with an optimizer state (named tuples, an empty one), a random key and a numpy array."""
    a, b = jax.random.normal(jax.random.key(seed), (2, 8, rank), dtype)
    odd = jnp.array([-0.0, 1e-45, jnp.inf, jnp.nan], jnp.float32)
    lora = {"layers": [{"q_proj": (a, b)}], "odd": odd, "half": a.astype(jnp.bfloat16)}
    return {
        "lora": lora,
        "opt_state": optax.adamw(1e-3).init(lora),
        "key": jax.random.key(seed),
        "order": np.arange(5, dtype=np.int32),
    }


def abstract(state: Any) -> Any:
    def leaf(x: Any) -> Any:
        return x if isinstance(x, np.ndarray) else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(leaf, state)


def bits(tree: Any) -> list[tuple[str, bytes]]:
    def raw(x: Any) -> bytes:
        data = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        return np.asarray(data).tobytes()

    return [(f"{jax.tree_util.keystr(path)} {x.dtype} {x.shape}", raw(x)) for path, x in _leaves(tree)]


def _leaves(tree: Any) -> Any:
    return jax.tree_util.tree_leaves_with_path(tree)


def test_a_state_comes_back_bit_equal_with_its_structure_and_host_state(tmp_path: Path):
    state = make_state()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(abstract(state)) is None
        checkpoints.save(1, state, HOST)
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore_latest(abstract(state))
    assert restored is not None
    step, back, host = restored
    assert step == 1
    assert bits(back) == bits(state)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert isinstance(back["order"], np.ndarray)
    assert host == HOST
    rng = np.random.default_rng()
    rng.bit_generator.state = host["rng"]
    assert rng.random() == np.random.default_rng(3).random()


def test_arrays_or_structs_without_sharding_serve_as_the_wanted_state(tmp_path: Path):
    state = make_state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, HOST)
        by_arrays = checkpoints.restore(1, make_state(seed=9))[0]
        by_structs = checkpoints.restore(1, {**state, "lora": jax.eval_shape(lambda: state["lora"])})[0]
    assert bits(by_arrays) == bits(by_structs) == bits(state)


def test_the_last_and_the_best_are_kept_and_steps_without_metric_are_not(tmp_path: Path):
    state = {"x": jnp.zeros(2)}
    with Checkpoints(tmp_path, keep_last=2, keep_best=1, metric={1: 0.2, 2: 0.9, 4: 0.5}.get) as checkpoints:
        for step in range(1, 7):
            checkpoints.save(step, state, {})
        assert checkpoints.steps() == [2, 5, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "5", "6"]
    with Checkpoints(tmp_path, keep_last=1) as checkpoints:
        checkpoints.save(7, state, {})
        assert checkpoints.steps() == [7]


def test_a_metric_that_comes_after_its_step_was_saved_counts(tmp_path: Path):
    state, metrics = {"x": jnp.zeros(2)}, {0: 0.1, 8: 0.3, 12: 0.2}
    with Checkpoints(tmp_path, keep_last=1, keep_best=1, metric=lambda step: metrics.get(step)) as checkpoints:
        for step in (0, 4, 8, 12):
            checkpoints.save(step, state, {})
            metrics |= {4: 0.9}  # the evaluation of step 4 was made up for
        assert checkpoints.steps() == [4, 12]


def test_a_step_that_would_not_be_saved_is_an_error(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, {"x": jnp.zeros(2)}, {})
        for step in (4, 3):
            with pytest.raises(ValueError, match=rf"step {step} was not saved.*\[4\]"):
                checkpoints.save(step, {"x": jnp.ones(2)}, {})


def test_what_would_not_come_back_is_refused(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        for host in ({"positions": {1: "a"}}, {"order": (1, 2)}):
            with pytest.raises(ValueError, match="changes in JSON"):
                checkpoints.save(1, {"x": jnp.zeros(2)}, host)
        with pytest.raises(ValueError, match="JSON compliant"):
            checkpoints.save(1, {"x": jnp.zeros(2)}, {"loss": float("nan")})
        with pytest.raises(ValueError, match=r"state\['count'\] is 3"):
            checkpoints.save(1, {"count": 3}, {})
        assert checkpoints.steps() == []


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (lambda: make_state(rank=8), r"\['half'\] is bfloat16\[8, 4\], but .* has bfloat16\[8, 8\]"),
        (lambda: make_state(dtype=jnp.bfloat16), r"q_proj.* is float32.* has bfloat16"),
        (lambda: {**make_state(), "order": np.arange(5)}, r"\['order'\] is int32\[5\].* has int64\[5\]"),
        (lambda: {**make_state(), "mean": np.zeros(1)}, r"has no state\['mean'\]"),
        (lambda: {"lora": make_state()["lora"]}, r"has state\['key'\], which this configuration lacks"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_the_name_of_the_leaf(
    tmp_path: Path, wanted: Callable[[], Any], fault: str
):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(), HOST)
        with pytest.raises(UserError, match=fault):
            checkpoints.restore_latest(abstract(wanted()))


def test_a_renamed_leaf_is_suggested(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"q_proj": jnp.zeros(2)}, {})
        with pytest.raises(UserError, match=r"no state\['qproj'\] \(it has state\['q_proj'\]\)"):
            checkpoints.restore_latest({"qproj": jnp.zeros(2)})


def test_a_relative_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with Checkpoints("runs/x/checkpoints") as checkpoints:
        checkpoints.save(1, {"x": jnp.ones(2)}, {})
    assert (tmp_path / "runs/x/checkpoints/1").is_dir()


def test_a_single_checkpoint_is_named_as_such(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": jnp.ones(2)}, {})
    with pytest.raises(UserError, match=rf"is a single checkpoint; pass its parent {tmp_path}"):
        Checkpoints(tmp_path / "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]


def cut(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-1])


def empty(part: Path) -> None:
    part.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, empty, Path.unlink])
def test_damage_is_named_or_harmless(tmp_path: Path, damage):
    """Whichever file it hits: the state comes back as it was, or the message names the folder."""
    state = {"x": jnp.arange(4096.0)}
    with Checkpoints(tmp_path / "whole") as checkpoints:
        checkpoints.save(1, state, {})
    files = [path for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    faults: list[tuple[Path, str]] = []
    for number, file in enumerate(files):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", folder)
        damage(folder / file.relative_to(tmp_path / "whole"))
        with Checkpoints(folder) as checkpoints:
            try:
                restored = checkpoints.restore_latest(state)
            except UserError as error:
                faults.append((folder, str(error)))
            else:
                assert restored is None or bits(restored[1]) == bits(state)
    assert len(faults) >= 4
    assert all(str(folder) in message for folder, message in faults)


def test_an_absent_step_is_named(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": jnp.ones(2)}, {})
        with pytest.raises(UserError, match=r"no checkpoint of step 2; it has \[1\]"):
            checkpoints.restore(2, {"x": jnp.ones(2)})


SAVE_ON = """
import sys
import jax.numpy as jnp
from jaxsearchrl.checkpoint import Checkpoints
state = lambda step: {"x": jnp.full((512, 512), step, jnp.float32), "y": [jnp.full(1000, step)] * 8}
with Checkpoints(sys.argv[1], keep_last=2) as checkpoints:
    restored = checkpoints.restore_latest(state(0))
    first = 1 if restored is None else restored[0] + 1
    for step in range(first, 1000):
        print(step, flush=True)
        checkpoints.save(step, state(step), {"step": step})
"""


def test_after_kill_9_in_a_save_the_newest_complete_step_is_found_and_the_killed_one_saved_again(tmp_path: Path):
    moment, announced = random.Random(5), 0
    wanted = {"x": jnp.zeros((512, 512)), "y": [jnp.zeros(1000, jnp.int32)] * 8}
    for _ in range(3):
        command = [sys.executable, "-c", SAVE_ON, str(tmp_path)]
        env = {**os.environ, "JAX_PLATFORMS": "cpu"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as saver:
            assert saver.stdout is not None
            first = int(saver.stdout.readline())
            assert first >= announced  # it goes on at the killed step, or after it when the kill came late
            assert int(saver.stdout.readline()) == first + 1
            time.sleep(moment.uniform(0.0, 0.15))
            saver.send_signal(signal.SIGKILL)
            announced = max(map(int, saver.stdout.read().split()), default=first + 1)
        with Checkpoints(tmp_path, keep_last=2) as checkpoints:
            restored = checkpoints.restore_latest(wanted)
            assert restored is not None
            step, state, host = restored
            assert step in (announced - 1, announced)
            assert host == {"step": step}
            assert all((leaf == step).all() for leaf in jax.tree.leaves(state))
            leftovers = [path.name for path in tmp_path.iterdir() if not path.name.isdigit()]
            assert leftovers == []
