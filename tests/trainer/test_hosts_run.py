"""Runs and evaluations of several processes: they end as one process does, and go on after whatever became of one."""

import shutil
import signal

import pytest

from jaxsearchrl.config_tree import to_json, with_values
from jaxsearchrl.export import export
from jaxsearchrl.records import read_file, read_records
from jaxsearchrl.telemetry.metrics_file import read_metrics
from tests import processes
from tests.trainer.conftest import PROCESS
from tests.trainer.test_resume import assert_same, checkpoints

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def start(cache_dir, tmp_path_factory):
    """Trains or evaluates in processes of their own, one for each folder. stop: what becomes of which of them."""

    def run(config, folders, devices=1, stop=None, mode="train"):
        file = tmp_path_factory.mktemp("config") / "config.json"
        file.write_text(to_json(config))
        arguments = [[mode, str(file), str(folder)] for folder in folders]
        for number, words in (stop or {}).items():
            arguments[number] += words
        environment = {
            "JAX_COMPILATION_CACHE_DIR": str(cache_dir),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        return processes.run(PROCESS, arguments, devices=devices, environment=environment)

    return run


def all_well(ended):
    assert [process.status for process in ended] == [0] * len(ended), "\n".join(p.errors[-2000:] for p in ended)


def test_two_hosts_of_four_devices_go_on_as_one_of_four_and_as_one_of_one(config, start, straight, state, tmp_path):
    """They end close to where one device alone ends: sums over devices are rounded in another order."""
    base = with_values(config, {"sampling.slots": 4, "learning.pack_rows": 4})
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"  # each host has a folder of its own
    mesh = {"mesh.data": 0, "mesh.fsdp": 2, "mesh.tensor": 2, "train.steps": 2}
    ended = start(with_values(base, mesh), [here, elsewhere], devices=4)
    all_well(ended)
    assert "mesh of 8 devices: data 2 x fsdp 2 x tensor 2" in ended[0].errors
    assert "step" not in ended[1].errors
    assert not elsewhere.exists()
    for step in (1, 2):
        ours, theirs = (read_records(folder, "train", step) for folder in (here, straight))
        assert [(record.uid, record.tokens) for record in ours] == [(record.uid, record.tokens) for record in theirs]
    export(with_values(base, mesh), str(here))  # by one process, without the mesh
    assert (here / "merged" / "step_000002" / "config.json").is_file()
    all_well(start(with_values(base, {"mesh.data": 4, "train.steps": 4}), [here], devices=4))
    all_well(start(with_values(base, {"mesh.data": 1, "train.steps": 6}), [here]))
    ours, theirs = ([row["reward"] for row in read_metrics(folder, "train")] for folder in (here, straight))
    assert ours == pytest.approx(theirs, abs=1e-6)
    ours, theirs = state(here), state(straight)
    for name in theirs:
        if "lora" in name:
            assert ours[name] == pytest.approx(theirs[name], abs=2e-4)


def test_whatever_becomes_of_one_the_others_end_and_the_same_command_goes_on(config, start, left_behind, tmp_path):
    """And ends bit-equal with a run of which nothing became. Both hosts share the folder."""
    config = with_values(
        config, {"sampling.slots": 4, "mesh.data": 0, "learning.pack_rows": 2, "checkpoint.every": 1, "eval.every": 3}
    )
    whole, run = tmp_path / "whole", tmp_path / "run"
    all_well(start(config, [whole] * 2))

    ended = start(config, [run] * 2, stop={1: ["SIGKILL", "rollouts", "2"]})
    assert [process.status for process in ended] == [2, -signal.SIGKILL]
    assert "error: process 1 on " in ended[0].errors
    assert " is lost: no sign of life for 10 seconds. This process ends too; the same command on" in ended[0].errors
    assert ended[0].seconds < ended[1].seconds + 30
    assert checkpoints(run) == [0, 1]

    ended = start(config, [run] * 2, stop={1: ["SIGKILL", "update", "3"]})
    assert "going on after step 1" in ended[0].errors
    assert [process.status for process in ended] == [2, -signal.SIGKILL]
    assert " is lost: no sign of life for 10 seconds" in ended[0].errors
    assert ended[0].seconds < ended[1].seconds + 30
    assert checkpoints(run)[-1] == 2

    for number, when in ((1, "rollouts"), (0, "train")):  # while it plays, and between rollouts and update
        ended = start(config, [run] * 2, stop={number: ["SIGTERM", when, "5"]})
        all_well(ended)
        assert "stopped on request after step 4; the same command goes on from there" in ended[0].errors
        assert checkpoints(run)[-1] == 4

    ended = start(config, [run] * 2, stop={0: ["SIGKILL", "save", "5"]})
    assert ended[0].status == -signal.SIGKILL
    assert ended[1].status != 0
    assert "process 0 is lost" in ended[1].errors or "the leader task was preempted/died" in ended[1].errors
    assert ended[1].seconds < ended[0].seconds + 30
    assert checkpoints(run)[-1] == 4

    all_well(start(config, [run] * 2))
    assert_same(run, whole, left_behind)


def test_three_hosts_with_two_groups_warm_start_and_a_reference(config, start, tmp_path):
    """One of them has nothing to play. Records and metrics are written once, and are those of one process."""
    settings = {
        "sampling.slots": 3,
        "learning.pack_rows": 3,
        "learning.kl_weight": 0.1,
        "warm_start.trajectories": 2,
        "warm_start.rows_per_step": 1,
        "train.steps": 2,
        "mesh.data": 0,
    }
    one, many = tmp_path / "one", tmp_path / "many"
    for folders in ([one], [many] * 3):
        all_well(start(with_values(config, settings), folders))
    names = ["nats_per_token", "grad_norm"]
    for split, step in (("warm_start", 0), ("eval", 0), ("train", 1), ("train", 2)):
        ours, theirs = (read_records(folder, split, step) for folder in (many, one))
        assert [(r.uid, r.task_id) for r in ours] == [(r.uid, r.task_id) for r in theirs]
        alike = [(a.tokens, a.reward) == (b.tokens, b.reward) for a, b in zip(ours, theirs, strict=True)]
        # A choice within rounding may fall the other way; what follows it is another episode, and another update.
        assert sum(alike) >= len(alike) / 2
        if not all(alike):
            break
    else:
        names += ["reward", "learn/kl", "learn/grad_norm", "learn/action_tokens"]
    ours, theirs = read_metrics(many), read_metrics(one)
    assert [(row["kind"], row["step"]) for row in ours] == [(row["kind"], row["step"]) for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        for name in names:
            if name in other:
                assert mine[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6), name


def test_an_evaluation_by_two_hosts_goes_on_in_one_and_ends_as_one_by_one(config, start, straight, tmp_path):
    """Of all adapters, which the first host alone has."""
    settings = {"sampling.slots": 4, "mesh.data": 0, "mesh.tensor": 2, "learning.pack_rows": 2}
    config = with_values(config, settings | {"eval.adapter": "all", "eval.tasks": 4, "eval.tries": 2})
    one, many, elsewhere = (tmp_path / name for name in ("one", "many", "elsewhere"))
    for folder in (one, many):
        shutil.copytree(straight, folder)
    all_well(start(config, [one], devices=2, mode="eval"))

    ended = start(config, [many, elsewhere], devices=2, mode="eval", stop={1: ["SIGTERM", "rollouts", "4"]})
    all_well(ended)
    assert "mesh of 4 devices: data 2 x tensor 2" in ended[0].errors
    assert "stopped on request before the evaluation was complete; the same command goes on" in ended[0].errors
    assert "eval" not in ended[1].errors + ended[1].out
    assert not elsewhere.exists()
    ours, theirs = many / "evaluations" / "all", one / "evaluations" / "all"
    assert [(row["kind"], row["step"]) for row in read_metrics(ours)] == [("eval", 0), ("eval_greedy", 0)]
    played = {r.uid: r for r in read_file(ours / "rollouts" / "eval" / ".step_000003.unfinished.jsonl")}
    assert 4 <= min(played.keys() - range(4)) < 8  # of the second two tasks, by the host that was stopped
    assert len(played) < 8

    all_well(start(config, [many], devices=2, mode="eval"))
    resumed = {r.uid: r for r in read_records(ours, "eval", 3)}
    assert {uid: resumed[uid] for uid in played} == played  # with their seconds: they were not played again
    assert len(read_metrics(ours)) == len(read_metrics(theirs)) == 6
    for mine, other in zip(read_metrics(ours), read_metrics(theirs), strict=True):
        kind = mine.pop("kind")
        assert kind == other.pop("kind")
        untimed = [name for name in other if not name.startswith(("seconds/", "speed/", "episode_seconds/"))]
        assert {name: mine[name] for name in untimed} == pytest.approx({name: other[name] for name in untimed}, 1e-4)
        ends = [
            [(r.uid, r.task_id, r.tokens, r.score_parts) for r in read_records(folder, kind, mine["step"])]
            for folder in (ours, theirs)
        ]
        assert ends[0] == ends[1]


def test_scripts_are_shared_out_too(config, start, tmp_path):
    config = with_values(config, {"eval.player": "expert", "eval.tasks": 3, "sampling.slots": 1})
    one, many = tmp_path / "one", tmp_path / "many"
    for folders in ([one], [many] * 4):  # one of them has nothing to play
        all_well(start(config, folders, mode="eval"))
    ours, theirs = (read_records(folder / "evaluations" / "expert", "eval", 0) for folder in (many, one))
    assert [(r.uid, r.tokens, r.reward) for r in ours] == [(r.uid, r.tokens, r.reward) for r in theirs]
    assert len(read_metrics(many / "evaluations" / "expert")) == 1


def test_hosts_with_other_settings_and_what_is_for_one_host_are_refused(config, tmp_path):
    """By the program itself."""
    (tmp_path / "config.json").write_text(to_json(config))
    (tmp_path / "tiny.py").write_text(
        "from pathlib import Path\n"
        "from jaxsearchrl.config import Config\n"
        "from jaxsearchrl.config_tree import from_json\n"
        "text = Path(__file__).with_name('config.json').read_text()\n"
        "get_config = lambda: from_json(Config, text, 'config.json')\n"
    )
    words = ["jaxsearchrl.main", f"--config={tmp_path / 'tiny.py'}", f"--workdir={tmp_path / 'run'}"]
    ended = processes.run("-m", [words, [*words, "--config.train.seed=1"]], devices=1)
    for process in ended:
        assert process.status == 2
        assert "process 1 has other settings than process 0: give all hosts the same command" in process.errors
        assert "Traceback" not in process.errors
    ended = processes.run("-m", [[*words, "--mode=export"], [*words, "--dry_run"]], devices=1)
    reasons = ("--mode=export: merges files, on no device, and is", "--dry_run: is")
    for process, reason in zip(ended, reasons, strict=True):
        assert process.status == 2
        assert f"{reason} for one process; start it on one host" in process.errors
    assert not (tmp_path / "run").exists()
