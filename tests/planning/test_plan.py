"""Whether a plan fits, what it proposes where not, what a run would cost, and the command that says so."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.shapes import SHAPES, write_config
from jaxsearchrl.config import Config, EvalConfig, LearningConfig, MeshConfig, ModelConfig, SamplingConfig, TrainConfig
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.models.config_file import read_architecture
from jaxsearchrl.models.mesh_choice import weight_bytes
from jaxsearchrl.models.tiny import tiny_architecture
from jaxsearchrl.planning.costs import Work
from jaxsearchrl.planning.estimate import Episode, Phases, Times, estimate_run, longest_episode, roofline
from jaxsearchrl.planning.plan import Advice, Plan, advise, held_bytes, model_of, on_chips
from jaxsearchrl.planning.programs import Program, abstract_arrays
from jaxsearchrl.planning.report import plan_run, write_report
from jaxsearchrl.planning.targets import GIB, Chip, Target, find_target

ROOT = Path(__file__).parents[2]
CONFIG = Config(
    name="mine",
    model=ModelConfig(weights_dtype="bfloat16"),
    sampling=SamplingConfig(slots=4, capacity=2048, read_block=128),
    learning=LearningConfig(pack_rows=2, pack_tokens=4096),
)
LLAMA = tiny_architecture("llama", vocab_size=300)  # 2 layers of width 48, 1 kv head of 16
SLOT = 2 * 2 * 2048 * 16 * 4  # layers, keys and values
ROW = 2 * 4096 * 48 * 4  # inputs of 2 layers
PHASES = Phases(Work(1e9, 0, 1e3), Work(1e9, 0, 2e9), Work(1e12, 1e12, 1e9))


def a_plan(config: Config, arch=LLAMA, sampling: int = 7, learning: int = 11) -> Plan:
    """Real arrays, and programs that take so many bytes."""
    model = model_of(arch, config)
    arrays = abstract_arrays(model, find_target("cpu").mesh(MeshConfig()), config.sampling, config.learning)
    programs = ({"extend": Program(temporaries=sampling)}, {"update": Program(temporaries=learning)})
    return Plan(*held_bytes(model, config, arrays), *programs)


def target(memory: int, platform="cuda", by_default: int | None = None, **rates) -> Target:
    return Target("h100", Chip(platform, memory, by_default or memory, **rates))


def numbered(report: str) -> list[str]:
    return re.findall(r"^\d+\. .*$", report, re.MULTILINE)


def test_the_mesh_is_chosen_by_what_jax_takes_of_a_gpu():
    """As a run does, which is not told to take more: the weights are above 0.4 of that, and below 0.4 of all."""
    model = model_of(tiny_architecture("llama", vocab_size=300, heads=4, kv_heads=2), CONFIG)
    size = weight_bytes(model)
    two = replace(target(3 * size, by_default=2 * size), chips=2)
    assert on_chips(CONFIG, model, two).mesh == MeshConfig(data=1, tensor=2)


def test_a_slice_of_several_hosts_is_cut_as_its_processes_cut_it():
    arch = tiny_architecture("llama", vocab_size=300, heads=8, kv_heads=8)
    config = replace(CONFIG, sampling=replace(CONFIG.sampling, slots=8), learning=replace(CONFIG.learning, pack_rows=8))
    model, slice_ = model_of(arch, config), find_target("v5e:4x4")
    assert on_chips(config, model, slice_).mesh == MeshConfig(data=8, tensor=2)
    by_hand = replace(config, mesh=MeshConfig(tensor=4))
    assert on_chips(by_hand, model, slice_).mesh == MeshConfig(data=4, tensor=4)
    with pytest.raises(ConfigError, match=r"tensor 8 x expert 1 are 8 devices, but a process has 4"):
        on_chips(replace(config, mesh=MeshConfig(tensor=8)), model, slice_)
    assert on_chips(replace(config, mesh=MeshConfig(tensor=8)), model, find_target("v5e:2x4")).mesh.tensor == 8


def test_the_total_is_what_is_held_and_the_hungrier_half():
    sampler = {"extend": Program(outputs=90, aliased=80, temporaries=5), "fork": Program(temporaries=7)}
    learner = {"forward 0": Program(outputs=4, temporaries=6)}
    assert Plan({"base": 100, "cache": 80}, {"gradients": 4}, sampler, learner).total == 180 + 15
    assert Plan({"base": 100, "cache": 80}, {"gradients": 6}, sampler, learner).total == 180 + 16


def test_what_is_held_adds_up():
    plan = a_plan(CONFIG)
    assert plan.held["cache"] == 4 * SLOT
    assert plan.learning["inputs of the layers"] == 2 * ROW
    assert plan.total == sum(plan.held.values()) + sum(plan.learning.values()) + 11
    kl = a_plan(replace(CONFIG, learning=replace(CONFIG.learning, kl_weight=0.1)))
    assert kl.held["reference adapter"] == kl.held["adapter"] == plan.learning["gradients"]


def test_it_fits_to_the_last_byte_and_only_if_all_compiles():
    plan = a_plan(CONFIG)
    assert plan.fits(plan.total)
    assert not plan.fits(plan.total - 1)
    broken = replace(plan, sampler={"extend": Program(error="Ran out of memory")})
    assert not broken.fits(2 * plan.total)
    assert "extend does not compile: Ran out of memory" in write_report(broken, PHASES, LLAMA, CONFIG, target(10**12))


def test_advice_in_order_with_what_each_saves():
    plan = a_plan(CONFIG)
    advice = list(advise(plan, LLAMA, CONFIG, target(plan.total - SLOT - 1)))
    assert advice[:6] == [
        Advice("sampling.slots=2", 2 * SLOT),
        Advice("learning.pack_rows=1", ROW),
        Advice("learning.pack_tokens=2048", ROW),
        Advice("sampling.cache_dtype=bfloat16", 2 * SLOT),
        Advice("sampling.capacity=1024", 2 * SLOT),
        Advice("sampling.capacity=1024 and learning.pack_tokens=1024", 2 * SLOT + 2 * ROW * 3 // 4),
    ]
    # Of two chips each has half of an MLP's 80 columns and of 300 ids; 3 heads and 1 kv head stay whole.
    weights = 2 * (300 * 24 + 2 * 3 * 40 * 48)
    adapter = 4 * 16 * 2 * (2 * 40 + 40)  # B of gate and up, A of down
    assert advice[6:] == [Advice("2 chips in the place of 1", weights + 4 * adapter)]


def test_advice_leaves_out_what_the_settings_forbid_and_what_saves_nothing():
    sampling = replace(
        CONFIG.sampling, slots=1, capacity=1024, cache_dtype="bfloat16"
    )  # half of it has no room for a turn and its observation
    config = replace(CONFIG, sampling=sampling, learning=replace(CONFIG.learning, pack_rows=1, pack_tokens=1024))
    plan = a_plan(config)
    assert [a.change for a in advise(plan, LLAMA, config, target(1))] == ["2 chips in the place of 1"]
    hungry = a_plan(CONFIG, sampling=10**9)  # the sampler's temporaries decide, so the learner's rows do not
    assert "learning.pack_rows=1" not in [a.change for a in advise(hungry, LLAMA, CONFIG, target(1))]


def test_half_a_gigabyte_of_weights_on_one_v5e_wants_twelve_slots():
    sampling = SamplingConfig(slots=16, capacity=30720, read_block=512)
    config = replace(CONFIG, sampling=sampling, learning=LearningConfig(pack_rows=1, pack_tokens=30720))
    v5e = find_target("v5e:1x1")
    # Programs as docs/compile_plans.md has them.
    plan = a_plan(config, SHAPES["0.5b"], sampling=int(1.25 * GIB), learning=int(3.40 * GIB))
    assert plan.total / GIB == pytest.approx(18.16, abs=0.02)
    first = next(advise(plan, SHAPES["0.5b"], config, v5e))
    assert first == Advice("sampling.slots=12", 4 * 24 * 2 * 2 * 30720 * 64 * 4)
    assert (plan.total - first.saves) / GIB == pytest.approx(15.35, abs=0.02)


def test_experts_can_be_packed():
    arch = tiny_architecture("gpt_oss", vocab_size=30, d_model=64)
    plan = a_plan(CONFIG, arch)
    experts = 2 * 5 * (64 * 64 + 32 * 64)
    assert Advice("model.packed_experts=true", experts * 2 - experts * 17 // 32) in list(
        advise(plan, arch, CONFIG, target(1))
    )
    packed = replace(CONFIG, model=replace(CONFIG.model, packed_experts=True))
    assert not [a for a in advise(a_plan(packed, arch), arch, packed, target(1)) if "packed" in a.change]


def test_the_report_says_whether_a_change_is_enough():
    plan = a_plan(CONFIG)
    report = write_report(plan, PHASES, LLAMA, CONFIG, target(plan.total - SLOT, bandwidth=0.0))
    assert "it does not fit" in report
    lines = numbered(report)
    assert lines[0].startswith("1. sampling.slots=3 saves 0.00 GiB")
    assert lines[0].endswith("it fits")
    assert len(lines) == 7
    tight = write_report(plan, PHASES, LLAMA, CONFIG, target(1))
    assert [line.endswith("not enough alone") for line in numbered(tight)] == [True] * 7


def test_a_gpu_must_be_told_to_give_more_than_three_quarters():
    plan = a_plan(CONFIG)
    told = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert told in write_report(plan, PHASES, LLAMA, CONFIG, target(plan.total, by_default=plan.total - 1))
    assert told not in write_report(plan, PHASES, LLAMA, CONFIG, target(plan.total))


def test_a_t4_gets_its_note():
    plan, rates = a_plan(CONFIG), {"bfloat16": 1e12, "float32": 1e12, "bandwidth": 1e9}
    report = write_report(plan, PHASES, LLAMA, CONFIG, target(10**12, has_bfloat16=False, **rates))
    assert "has no bfloat16" in report


def test_times_and_cost_by_hand():
    # Of 2,048 tokens a third is sampled: turns of 256, observations of 512. Two groups of four in four slots.
    train, evaluation = TrainConfig(steps=10, groups_per_step=2, group_size=4), EvalConfig(every=4, tasks=2, tries=2)
    config = replace(CONFIG, train=train, eval=evaluation)
    assert longest_episode(config) == Episode(2048, 683)
    chip = Chip("tpu", 1, 1, bfloat16=1e12, float32=5e11, bandwidth=1e12)
    times = roofline(PHASES, chip, Program(estimate=0.5))
    assert times == Times(prefill=1e-3, decode=2e-3, row=3.0, update=0.5)
    run = estimate_run(config, times)
    rollouts = 8 * (2048 - 683) * 1e-3 + 2 * 683 * 2e-3
    learning = 4 * 3.0 + 0.5  # 8 episodes of 2,048 tokens in rows of 4,096, one update
    tries = 4 * (2048 - 683) * 1e-3 + 683 * 2e-3
    greedy = 2 * (2048 - 683) * 1e-3 + 683 * 2e-3  # two episodes, but as many steps
    assert run.rollouts == pytest.approx(rollouts)
    assert run.learning == pytest.approx(learning)
    assert run.evaluation == pytest.approx(tries + greedy)
    assert run.hours == pytest.approx((10 * (rollouts + learning) + 4 * (tries + greedy)) / 3600)  # before, 4, 8, 10
    assert run.sampled_per_second == pytest.approx(4 / 2e-3)
    assert run.tokens_per_second == pytest.approx(8 * 2048 / (rollouts + learning))
    made = Target("v6e", replace(chip, memory=10**12, by_default=10**12), chips=4, layout="2x2")
    text = write_report(a_plan(config), PHASES, LLAMA, config, made, price=2.5)
    assert text.count("a roofline, not a measurement") == 2
    hours = (10 * (rollouts + learning - 0.5) + 4 * (tries + greedy)) / 3600  # this plan's update has no estimate
    assert f"{4 * hours * 2.5:.2f} at 2.5 a chip and hour" in text


@pytest.mark.parametrize("size", SHAPES)
def test_a_model_is_planned_from_its_config_alone(size, tmp_path):
    write_config(size, tmp_path)
    assert read_architecture(tmp_path) == SHAPES[size]


def test_faults_of_the_user_are_named(tmp_path):
    write_config("tiny", tmp_path)
    config = replace(CONFIG, model=replace(CONFIG.model, path=str(tmp_path)))
    with pytest.raises(UserError, match="--price=-1"):
        plan_run(config, "cpu", -1)
    with pytest.raises(UserError, match="'h300' is not known"):
        plan_run(config, "h300", 0)
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        plan_run(replace(config, model=ModelConfig(path=str(tmp_path / "none"))), "cpu", 0)
    long = replace(config, sampling=replace(config.sampling, capacity=8192))
    with pytest.raises(UserError, match=r"sampling\.capacity = 8192: the model's context has 4096 positions"):
        plan_run(long, "cpu", 0)


def command(*arguments: str, tmp_path: Path) -> subprocess.CompletedProcess:
    """The program, in a process that lacks what a plan must do without."""
    for module in ("transformers", "tokenizers", "safetensors", "gguf", "tantivy", "orbax", "datasets", "scipy"):
        (tmp_path / "without" / module).mkdir(parents=True, exist_ok=True)
        (tmp_path / "without" / module / "__init__.py").write_text("raise ImportError('a plan needs no ' + __name__)\n")
    return subprocess.run(
        [sys.executable, "-m", "jaxsearchrl.main", f"--config={ROOT}/configs/sec_4b.py", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}/without:{ROOT}"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_command_needs_neither_weights_nor_data_nor_much_else(tmp_path):
    write_config("tiny", tmp_path / "model")
    small = ("sampling.capacity=1536", "sampling.read_block=256", "sampling.slots=2", "learning.pack_tokens=1536")
    small = (*small, "task.max_observation_tokens=512", "sampling.max_turn_tokens=256", "model.path=model")
    done = command("--mode=plan", "--topology=cpu", *(f"--config.{setting}" for setting in small), tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# sec_4b on cpu\n")
    assert "it fits" in done.stdout
    for name in ("extend", "fork", "decode", "embed", "head", "forward 0", "backward 0", "update"):
        assert f"| {name} |" in done.stdout
        assert f"compiling {name} done" in done.stderr
    assert "| decode, a step of 2 slots |" in done.stdout
    assert os.listdir(tmp_path / "model") == ["config.json"]


def test_a_topology_is_for_plans_only(tmp_path):
    done = command("--mode=check", "--topology=v6e:2x2", tmp_path=tmp_path)
    assert done.returncode == 2
    assert "--topology=v6e:2x2 is for --mode=plan" in done.stderr
