"""One device or eight: the same tokens, log-probs and gradients, from arrays that are cut as the mesh says.

Eight devices need a process of their own (`python tests/test_mesh.py`), which reports.
"""

import functools
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig, LoraConfig, MeshConfig, SamplingConfig
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import pack, parted, row_from
from jaxsearchrl.models.architecture import DeltaNet, Experts, Rope
from jaxsearchrl.models.decoder import build_model, init_lora
from jaxsearchrl.models.sharding import lora_shardings, make_mesh, mesh_of, put, row_parts, shardings, state_shardings
from jaxsearchrl.models.tiny import tiny_architecture
from jaxsearchrl.sampling.contract import SampleRequest
from jaxsearchrl.sampling.engine import Engine
from jaxsearchrl.telemetry.compilations import compilations
from jaxsearchrl.trajectory import Trajectory

ROOT = Path(__file__).parents[1]
SIZES = {"d_model": 32, "heads": 8, "kv_heads": 4, "head_dim": 16, "mlp_dim": 48, "vocab_size": 64}
MODELS = {
    "dense": ("qwen2", SIZES),
    "experts": ("qwen3_moe", {**SIZES, "experts": Experts(count=4, chosen=2, width=24, normalised=True)}),
    "windows": ("gpt_oss", {**SIZES, "mlp_dim": 24}),  # sinks and experts, too
    "delta": (
        "qwen3_5_text",
        {**SIZES, "rope": Rope(share=0.25), "delta": DeltaNet(8, 8, key_dim=8, value_dim=8, kernel=4)},
    ),
}
MESHES = {
    "data 8": MeshConfig(data=8),
    "fsdp 8": MeshConfig(data=1, fsdp=8),
    "tensor 4": MeshConfig(data=1, tensor=4),
    "2 x 2 x 2": MeshConfig(data=2, fsdp=2, tensor=2),
    "expert 4": MeshConfig(data=1, expert=4),
}
CASES = [("dense", mesh) for mesh in MESHES if mesh != "expert 4"]
CASES += [
    ("windows", "2 x 2 x 2"),
    ("experts", "expert 4"),
    ("experts", "data 8"),
    ("delta", "2 x 2 x 2"),
    ("delta", "data 8"),
]
# A recurrent state hands the differences of rounding on from token to token.
TOLERANCE = {"dense": 1e-5, "experts": 1e-5, "windows": 1e-5, "delta": 1e-4}
SAMPLING = SamplingConfig(slots=8, capacity=48, extend_chunks=2, chunk_tokens=8, decode_steps=4, read_block=16)


@pytest.fixture(scope="module")
def report():
    command = [sys.executable, __file__]
    # Devices that wait for each other each want a thread; with those of two cores XLA's CPU client may stand still.
    environment = {**os.environ, "NPROC": "32"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("model", "mesh"), CASES)
def test_gradient_update_and_logprobs_are_those_of_one_device(report, model, mesh):
    found = report[f"{model}, {mesh}"]
    assert found["gradient"] < TOLERANCE[model]
    assert found["adapter"] < TOLERANCE[model]
    assert found["logprobs"] < TOLERANCE[model]
    assert found["statistics"] < TOLERANCE[model]


@pytest.mark.parametrize(("model", "mesh"), CASES)
def test_what_is_sampled_is_the_same(report, model, mesh):
    found = report[f"{model}, {mesh}"]
    assert found["same tokens"]
    assert found["sampled logprobs"] < TOLERANCE[model]


@pytest.mark.parametrize(("model", "mesh"), CASES)
def test_nothing_is_compiled_again_and_the_base_is_there_once(report, model, mesh):
    found = report[f"{model}, {mesh}"]
    assert found["compiled in the second update"] == 0
    assert found["compiled while sampling again"] == 0
    assert found["shared"]


@pytest.mark.parametrize(
    ("model", "mesh", "base", "cache"),
    # Shares of one device's; what is not cut (biases, kv heads that do not divide) is the rest.
    [
        ("dense", "data 8", 1.0, 1 / 8),
        ("dense", "fsdp 8", 1 / 8, 1.0),
        ("dense", "tensor 4", 1 / 4, 1 / 4),
        ("dense", "2 x 2 x 2", 1 / 4, 1 / 8),
    ],
)
def test_a_device_holds_its_share(report, model, mesh, base, cache):
    found = report[f"{model}, {mesh}"]
    assert base <= found["base"] < base + 0.05
    assert found["cache"] == pytest.approx(cache)


def test_a_device_holds_its_experts(report):
    assert report["experts, expert 4"]["experts"] == 1 / 4


@pytest.mark.parametrize("mesh", ["data 8", "2 x 2 x 2"])
def test_a_pass_over_rows_takes_its_share_of_memory(report, mesh):
    """Of the temporaries of a layer's backward pass; what is gathered and added up stays."""
    assert report[f"dense, {mesh}"]["temporaries"] < {"data 8": 0.3, "2 x 2 x 2": 0.45}[mesh]


@pytest.mark.parametrize("mesh", ["fsdp 8", "2 x 2 x 2"])
def test_a_decode_step_gathers_no_weight(report, mesh):
    found = report[f"dense, {mesh}"]
    assert found["gathered while decoding"] < found["smallest matrix"]


def test_the_head_gathers_nothing_where_rows_are_shared_out(report):
    """Each device has the actions of its own rows."""
    assert report["dense, data 8"]["gathered by the head"] == 0


def test_more_devices_than_there_are_are_refused():
    with pytest.raises(
        ConfigError, match=r"mesh: data 2 x fsdp 1 x tensor 3 x expert 1 are 6 devices, but there are 4"
    ):
        make_mesh(MeshConfig(data=2, tensor=3), range(4))


def test_one_device_has_no_mesh():
    assert make_mesh(MeshConfig(), range(1)) is None
    assert make_mesh(MeshConfig(data=0), range(1)) is None


def test_data_takes_what_the_others_leave():
    assert make_mesh(MeshConfig(data=0, tensor=2), range(8)).shape["data"] == 4


# ---------------------------------------- the process of eight devices


def learn(model, base, lora, batches):
    """Gradient, adapter after two updates, log-probs under it, what the second compiled, memory, gathers, loss."""
    learner = Learner(model, base, policy_loss(LearningConfig()), vocab_size=62, temperature=1.0)
    optimizer, mesh = make_optimizer(LearningConfig(learning_rate=1e-3), 10), mesh_of(base)
    update, state = make_update(optimizer), optimizer.init(lora)
    if mesh:
        state = jax.device_put(state, state_shardings(state, lora_shardings(model, mesh), mesh))
    gradient, sums, compiled = None, None, 0
    for _ in range(2):
        before = compilations()
        grads, stats = learner.gradient(lora, batches, 100.0)
        gradient, sums = gradient or jax.device_get(grads), sums or stats.sums
        lora, state, _ = update(grads, state, lora)
        compiled = compilations() - before
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), lora)
    lowered = learner.lower_programs(abstract, learner._placed(batches[0]) if mesh else jax.device_put(batches[0]))
    compiled_programs = {name: lowered[name].compile() for name in ("backward 0", "head")}
    gathered = largest_gather(compiled_programs["head"])
    temporaries = compiled_programs["backward 0"].memory_analysis().temp_size_in_bytes
    logprobs = [as_listed(learner.logprobs(lora, batch), batch, mesh) for batch in batches]
    return gradient, jax.device_get(lora), logprobs, compiled, temporaries, gathered, sums


def as_listed(logprobs, batch, mesh):
    """A learner's log-probs in the order in which the batch lists its actions."""
    if mesh is None:
        return np.asarray(logprobs)
    numbers = np.arange(1, len(batch.targets) + 1)
    numbers = parted(replace(batch, targets=numbers), row_parts(mesh)).targets
    listed = np.zeros_like(logprobs)
    listed[numbers[numbers > 0] - 1] = np.asarray(logprobs)[numbers > 0]
    return listed


def largest_gather(program):
    """Elements of the largest array that devices gather from each other within a program."""
    shapes = re.findall(r"\w\[([\d,]*)\]\S* all-gather", program.as_text())
    return max((math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes), default=0)


def sample(engine, lora, prompts):
    """Two turns of each trajectory; prompts by uid."""
    engine.renew(lora, 11)
    before, results = compilations(), {}
    tokens = {uid: list(prompt) for uid, prompt in prompts.items()}
    for turn in range(2):
        for uid in tokens:
            engine.submit(SampleRequest(uid, tokens[uid], 7, 1.0))
        waiting = set(tokens)
        while waiting:
            for result in engine.poll():
                waiting.remove(result.uid)
                results[result.uid, turn] = result
                tokens[result.uid] += [*result.ids, 9, 8, 7]
    return results, compilations() - before


def furthest(ours, theirs):
    """The largest difference, as a share of the largest value."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return float(max(np.abs(np.asarray(x) - y).max() / max(np.abs(y).max(), 1e-9) for x, y in pairs))


def on_one_device(tree):
    """Bytes of the arrays' parts on the first device."""
    return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))


@functools.cache
def outcome(name, mesh_name=None):
    mesh = make_mesh(MESHES[mesh_name]) if mesh_name else None
    model, base, lora, batches, prompts = tiny_run(name, mesh)
    copy = jax.tree.map(jnp.copy, lora)  # the updates give theirs up
    engine = Engine(model, base, lora, SAMPLING, stop_ids=(5,), vocab_size=62, seed=0)
    sampled, _ = sample(engine, lora, prompts)
    _, again = sample(engine, lora, prompts)
    experts = [value for name, value in base.items() if ".experts." in name]
    held = on_one_device(base), on_one_device(engine._cache), on_one_device(experts)
    return (
        *learn(model, base, copy, batches),
        sampled,
        again,
        held,
        all(engine.base[name] is base[name] for name in base),
        largest_gather(engine._decode_program),
        min(spec.shape[0] * spec.shape[1] for spec in model.specs.values() if len(spec.shape) == 2),
    )


def compare(name, mesh_name):
    one, many = outcome(name), outcome(name, mesh_name)
    results = [(many[7][key], one[7][key]) for key in one[7]]
    return {
        "gradient": furthest(many[0], one[0]),
        "adapter": furthest(many[1], one[1]),
        "logprobs": furthest(many[2], one[2]),
        "compiled in the second update": many[3],
        "temporaries": many[4] / one[4],
        "gathered by the head": many[5],
        "statistics": max(abs(many[6][key] - value) / max(abs(value), 1) for key, value in one[6].items()).item(),
        "same tokens": all(ours.ids == theirs.ids for ours, theirs in results),
        "sampled logprobs": float(max(np.abs(np.subtract(x.logprobs, y.logprobs)).max() for x, y in results)),
        "compiled while sampling again": many[8],
        "base": many[9][0] / one[9][0],
        "cache": many[9][1] / one[9][1],
        "experts": many[9][2] / max(one[9][2], 1),
        "shared": many[10],
        "gathered while decoding": many[11],
        "smallest matrix": many[12],
    }


def tiny_run(name, mesh):
    """A random model and its weights, laid on the mesh; packed batches and prompts. The same in every process."""
    family, sizes = MODELS[name]
    model = build_model(tiny_architecture(family, **sizes), LoraConfig(rank=2))
    rng = np.random.default_rng(0)
    base = {n: 0.3 * rng.standard_normal(s.shape, np.float32) for n, s in model.specs.items()}
    lora = {n: v + 0.1 * rng.standard_normal(v.shape, np.float32) for n, v in init_lora(model, 0).items()}
    batches = pack(make_rows(rng), pack_rows=8, pack_tokens=32).batches
    shared = rng.integers(8, 60, 11).tolist()
    prompts = {n: [*shared, *rng.integers(8, 60, 1 + n // 3).tolist()] for n in range(8)}
    laid = (shardings(model, mesh), lora_shardings(model, mesh)) if mesh else (None, None)
    return model, put(base, laid[0]), put(lora, laid[1]), batches, prompts


def make_rows(rng):
    rows = []
    for uid in range(10):
        trajectory = Trajectory()
        trajectory.append_prompt(rng.integers(8, 60, 9 + uid % 3).tolist())
        ids = rng.integers(8, 60, 5 + uid % 4).tolist()
        trajectory.append_sampled(ids, rng.uniform(-5, -2, len(ids)))
        rows.append(row_from(uid, trajectory, float(rng.normal())))
    return rows


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_threefry_partitionable", True)
    print(json.dumps({f"{model}, {mesh}": compare(model, mesh) for model, mesh in CASES}))
