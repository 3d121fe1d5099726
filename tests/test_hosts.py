"""One process or several: the same tokens, log-probs and gradients, over the same buffers; what they tell each other.

Each case needs processes of its own (`python tests/test_hosts.py WHAT FOLDER`), the first of which reports.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.multihost_utils import process_allgather

from jaxsearchrl import hosts
from jaxsearchrl.config import LearningConfig, MeshConfig
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.models.sharding import local, lora_shardings, make_mesh, state_shardings
from jaxsearchrl.sampling.engine import Engine
from tests import processes
from tests.test_mesh import SAMPLING, as_listed, furthest, sample, tiny_run

TOLERANCE = 1e-5
# Of the processes, devices of each: what the others of "data" are.
MESHES = {
    (1, 1): MeshConfig(),
    (1, 8): MeshConfig(data=0, fsdp=2, tensor=2),
    (2, 4): MeshConfig(data=0, fsdp=2, tensor=2),
    (4, 2): MeshConfig(data=0),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each number of processes computed: arrays, and what processes say of their buffers."""
    found = {}
    for count, devices in MESHES:
        folder = tmp_path_factory.mktemp("report")
        ended = processes.run(__file__, [("work", str(folder))] * count, devices=devices)
        assert [process.status for process in ended] == [0] * count, ended[-1].errors[-3000:]
        arrays = dict(np.load(folder / "arrays.npz"))
        found[count, devices] = arrays, json.loads((folder / "report.json").read_text())
    return found


several = pytest.mark.parametrize("case", [case for case in MESHES if case != (1, 1)])


@pytest.mark.slow
@several
def test_gradient_update_and_logprobs_are_those_of_one_process(outcomes, case):
    ours, theirs = outcomes[case][0], outcomes[1, 1][0]
    for part in ("gradient", "adapter", "logprobs"):
        names = [name for name in theirs if name.startswith(part)]
        assert names
        assert furthest([ours[name] for name in names], [theirs[name] for name in names]) < TOLERANCE, part


@pytest.mark.slow
@several
def test_what_is_sampled_is_the_same(outcomes, case):
    """Whoever samples it: a token's random stream depends on trajectory and position."""
    ours, theirs = outcomes[case][1]["sampled"], outcomes[1, 1][1]["sampled"]
    assert len(theirs) == 16
    assert [(uid, turn, ids) for uid, turn, ids, _ in ours] == [(uid, turn, ids) for uid, turn, ids, _ in theirs]
    for (*_, one), (*_, other) in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("case", MESHES)
def test_sampler_and_learner_read_the_same_buffers(outcomes, case):
    for process in outcomes[case][1]["pointers"]:
        assert process["weights"] > 10
        assert process["learner"] == process["sampler"] == process["base"]


@pytest.mark.slow
def test_processes_tell_each_other(tmp_path):
    """Short and long words, in order; once; and one that is asked to stop."""
    ended = processes.run(__file__, [("talk", str(tmp_path))] * 3, devices=1)
    assert [process.status for process in ended] == [0] * 3, ended[0].errors
    for process in ended:
        said = json.loads(process.out.splitlines()[-1])
        assert said["short"] == ["0", "11", "222"]
        assert said["long"] == [[0, 0], [5_000_000, 1], [10_000_000, 2]]
        assert said["share"] == [[0, 1], [1, 3], [3, 5]]
        assert said["once"] == {"by": 0}
        assert said["any"] == [True, False]
        assert said[
            "differ"
        ] == "process 2 has other corpus than process 0: give all hosts the same command and the " + ("same files")
        assert said["stops"]
    assert (tmp_path / "once").read_text() == "0"


@pytest.mark.slow
def test_an_error_in_one_process_ends_all(tmp_path):
    ended = processes.run(__file__, [("fail", str(tmp_path))] * 3, devices=1)
    assert [process.status for process in ended] == [2, 2, 2]
    assert "the disk is full" in ended[1].errors
    for process in (ended[0], ended[2]):
        assert "error: process 1 on " in process.errors
        assert (
            "failed: the disk is full. This process ends too; the same command on all hosts goes on" in process.errors
        )


def test_a_word_of_no_meaning_is_refused(monkeypatch):
    monkeypatch.setenv("JAXSEARCHRL_HOSTS", "yes")
    with pytest.raises(UserError, match="JAXSEARCHRL_HOSTS = 'yes': set it to auto on TPU VMs and Slurm"):
        hosts.are_asked_for()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"data": 1},
            r"mesh\.data = 1: must be a multiple of 2, one for each process, and at most 6; .*mesh\.data = 0",
        ),
        ({"data": 8}, r"mesh\.data = 8: .* at most 6"),
        ({"data": 4, "tensor": 2}, r"mesh\.data = 4: .* at most 2"),
        ({"data": 0, "tensor": 2, "fsdp": 2}, r"fsdp 2 x tensor 2 x expert 1 are 4 devices, but a process has 3"),
    ],
)
def test_what_does_not_lie_within_each_process_is_refused(monkeypatch, sizes, message):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process_index: range(3))
    with pytest.raises(ConfigError, match=message):
        make_mesh(MeshConfig(**sizes))


def test_each_process_has_whole_rows_of_the_mesh(monkeypatch):
    """Whatever the order of all devices is."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process_index: [f"{process_index}{i}" for i in range(5)])
    monkeypatch.setattr("jaxsearchrl.models.sharding.Mesh", lambda devices, axes: devices)
    found = make_mesh(MeshConfig(data=0, tensor=2))
    assert found.reshape(4, 2).tolist() == [["00", "01"], ["02", "03"], ["10", "11"], ["12", "13"]]


def test_a_process_alone_is_all_of_them():
    assert (hosts.count(), hosts.is_first(), hosts.share(5)) == (1, True, range(5))
    assert hosts.exchange(b"x") == [b"x"]
    assert hosts.once(lambda x: x, 3) == 3
    hosts.check_same({"a": "b"})


@pytest.mark.parametrize(
    ("address", "number", "index", "message"),
    [
        ("127.0.0.1:1", "2", None, r"JAX_PROCESS_ID = ''.*one of several processes"),
        ("127.0.0.1:1", "2", "2", r"JAX_PROCESS_ID = 2: must be below JAX_NUM_PROCESSES = 2, numbers begin with 0"),
        ("127.0.0.1", "2", "0", r"JAX_COORDINATOR_ADDRESS = '127\.0\.0\.1': give address and port"),
        (None, "2", "0", r"JAX_COORDINATOR_ADDRESS = '': give address and port"),
        (None, None, "1", r"JAX_COORDINATOR_ADDRESS = '': give address and port"),
    ],
)
def test_a_process_that_does_not_know_which_it_is_is_refused(monkeypatch, address, number, index, message):
    """It does not run alone."""
    values = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": number, "JAX_PROCESS_ID": index}
    for name, value in values.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: pytest.fail("met"))
    with pytest.raises(UserError, match=message), hosts.joined():
        pass


# ---------------------------------------- the processes


def work(folder):
    count, devices = hosts.count(), jax.local_device_count()
    mesh = make_mesh(MESHES[count, devices])
    model, base, lora, batches, prompts = tiny_run("dense", mesh)
    adapter = jax.tree.map(jnp.copy, lora)  # the update gives its own up
    sampling = dataclasses.replace(SAMPLING, slots=SAMPLING.slots // count)
    engine = Engine(model, base, lora, sampling, stop_ids=(5,), vocab_size=62, seed=0)
    mine, _ = sample(engine, lora, {uid: prompts[uid] for uid in hosts.share(len(prompts))})
    said = [[uid, turn, result.ids, result.logprobs] for (uid, turn), result in sorted(mine.items())]
    sampled = [line for part in hosts.exchange(json.dumps(said).encode()) for line in json.loads(part)]
    learner = Learner(model, base, policy_loss(LearningConfig()), vocab_size=62, temperature=1.0)
    optimizer = make_optimizer(LearningConfig(learning_rate=1e-3), 10)
    state = jax.eval_shape(optimizer.init, adapter)
    laid = state_shardings(state, lora_shardings(model, mesh), mesh) if mesh else None
    state = jax.jit(optimizer.init, out_shardings=laid)(adapter)
    grads, _ = learner.gradient(adapter, batches, 100.0)
    arrays = {f"gradient {name}": np.asarray(value) for name, value in local(grads).items()}
    adapter, _, _ = make_update(optimizer)(grads, state, adapter)
    arrays |= {f"adapter {name}": np.asarray(value) for name, value in local(adapter).items()}
    for number, batch in enumerate(batches):
        logprobs = learner.logprobs(adapter, batch)
        logprobs = process_allgather(logprobs, tiled=True) if count > 1 else np.asarray(logprobs)
        arrays[f"logprobs {number}"] = as_listed(logprobs, batch, mesh)
    learners = learner._top | {
        f"layers.{i}.{name}": value for i, layer in enumerate(learner._base) for name, value in layer.items()
    }
    pointers = {
        "weights": len(base),
        **{
            who: [
                sorted(shard.data.unsafe_buffer_pointer() for shard in weights[name].addressable_shards)
                for name in sorted(base)
            ]
            for who, weights in (("base", base), ("sampler", engine.base), ("learner", learners))
        },
    }
    pointers = [json.loads(part) for part in hosts.exchange(json.dumps(pointers).encode())]
    if hosts.is_first():
        np.savez(folder / "arrays.npz", **arrays)
        (folder / "report.json").write_text(json.dumps({"sampled": sampled, "pointers": pointers}))


def talk(folder):
    index = jax.process_index()
    short = [part.decode() for part in hosts.exchange(str(index).encode() * (index + 1))]
    long = [[len(part), max(part, default=0)] for part in hosts.exchange(bytes([index]) * (5_000_000 * index))]
    shares = [json.loads(part) for part in hosts.exchange(json.dumps([*_ends(hosts.share(5))]).encode())]

    def write():
        with (folder / "once").open("a") as file:
            file.write(str(index))
        return {"by": index}

    done = hosts.once(write)
    try:
        hosts.check_same({"corpus": str(index // 2), "base": "b"})
        differ = ""
    except UserError as error:
        differ = str(error)
    found = [hosts.any_of(index == 1), hosts.any_of(False)]
    if index == 1:
        hosts.ask_to_stop()
    while index != 1 and not hosts.others_stop():
        time.sleep(0.05)
    said = {"short": short, "long": long, "share": shares, "once": done, "differ": differ, "any": found, "stops": True}
    print(json.dumps(said))


def _ends(numbers):
    return numbers.start, numbers.stop


def fail(folder):
    """One fails, one waits for words, one computes."""
    if jax.process_index() == 1:
        raise UserError("the disk is full")
    if jax.process_index() == 0:
        hosts.exchange(b"")
    time.sleep(100)


if __name__ == "__main__":
    what, path = sys.argv[1:]
    try:
        with hosts.joined():
            {"work": work, "talk": talk, "fail": fail}[what](Path(path))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
