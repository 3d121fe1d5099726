"""A run that was stopped, however it was, ends as one that never stopped: weights, optimizer, metrics, rollouts."""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from jaxsearchrl import trainer
from jaxsearchrl.config_tree import to_json
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.run_folder import RunFolder
from jaxsearchrl.telemetry.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def checkpoints(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())


def assert_same(folder, straight, left_behind):
    """The parts one by one: a difference is easier to read."""
    ours, theirs = left_behind(folder), left_behind(straight)
    assert ours["metrics"] == theirs["metrics"]
    assert ours["rollouts"] == theirs["rollouts"]
    assert ours["state"] == theirs["state"]
    learned = {name: bits for name, bits in ours["state"].items() if "lora_b" in name and "reference" not in name}
    assert all(map(any, learned.values()))


def test_at_an_epochs_end(train, straight, left_behind, tmp_path):
    """Four steps are the first epoch; the command with six goes on."""
    train(tmp_path, train__steps=4)
    assert checkpoints(tmp_path)[-1] == 4
    train(tmp_path)
    assert_same(tmp_path, straight, left_behind)


def test_after_sigterm_between_saves(config, process, train, straight, left_behind, tmp_path):
    result = process(config, tmp_path, "SIGTERM", "train", 5)
    assert result.returncode == 0, result.stderr
    assert "stopped on request after step 4; the same command goes on from there" in result.stderr
    assert checkpoints(tmp_path)[-1] == 4  # not due; the work of four steps is kept, the fifth was not whole
    assert [row["step"] for row in read_metrics(tmp_path, "train")] == [1, 2, 3, 4]
    train(tmp_path)
    assert_same(tmp_path, straight, left_behind)


@pytest.mark.parametrize("step", [0, 2])
def test_after_sigterm_in_an_evaluation(train, parts, straight, left_behind, tmp_path, monkeypatch, step):
    """The half that was done stays; the half that is missing is made up for."""
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_records", parts["interrupting"](trainer.write_records, "eval", step))
        train(tmp_path)
    assert [row["kind"] for row in read_metrics(tmp_path) if row["step"] == step][-1] == "eval"
    assert checkpoints(tmp_path)[-1] == step
    train(tmp_path)
    assert_same(tmp_path, straight, left_behind)


def test_after_kill_9_in_the_middle_of_a_save(config, process, train, straight, left_behind, tmp_path):
    result = process(config, tmp_path, "SIGKILL", "save", 6)
    assert result.returncode == -signal.SIGKILL
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["0", "3", "6.orbax-checkpoint-tmp"]
    assert [row["step"] for row in read_metrics(tmp_path, "train")] == [1, 2, 3, 4, 5, 6]
    train(tmp_path)
    assert_same(tmp_path, straight, left_behind)


def test_with_a_kl_term_and_two_updates_a_step(train, left_behind, tmp_path):
    """What the KL term is against is the adapter at the start of RL, also after a resume."""
    settings = {"learning__kl_weight": 0.1, "learning__loss": "ppo", "learning__updates_per_step": 2}
    train(tmp_path / "straight", train__steps=4, **settings)
    train(tmp_path / "stopped", train__steps=2, **settings)
    train(tmp_path / "stopped", train__steps=4, **settings)
    assert_same(tmp_path / "stopped", tmp_path / "straight", left_behind)
    state = left_behind(tmp_path / "straight")["state"]
    assert not any(any(bits) for name, bits in state.items() if "reference" in name and "lora_b" in name)
    kl = [row["learn/kl"] for row in read_metrics(tmp_path / "straight", "train")]
    assert 0 < kl[0] < kl[-1]


def test_a_complete_run_is_left_as_it_is(train, straight, left_behind, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    before = left_behind(straight)
    train(tmp_path / "run")
    assert left_behind(tmp_path / "run") == before


# ------------------------------------------------------------------------------------------------------ what is refused


def test_a_folder_that_another_process_holds(train, tmp_path):
    with RunFolder(tmp_path / "run"):
        with pytest.raises(UserError, match="in use by process"):
            train(tmp_path / "run")
        command = [sys.executable, "-m", "jaxsearchrl.main", f"--config={ROOT / 'configs' / 'curated_jsonl.py'}"]
        command += ["--dry_run", f"--workdir={tmp_path / 'run'}"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert "in use by process" in result.stderr
    assert "Traceback" not in result.stderr


def test_another_setting(train, straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"learning\.b2: the run has 0\.95, this command 0\.5"):
        train(tmp_path / "run", learning__b2=0.5)


def test_settings_that_never_came_to_a_checkpoint_may_change(train, tmp_path):
    with pytest.raises(ConfigError, match=r"sampling\.capacity = 5120"):
        train(tmp_path, sampling__capacity=5120)
    assert not (tmp_path / "config.json").exists()
    with pytest.raises(UserError, match=r"8 tasks, fewer than train\.groups_per_step = 9"):
        train(tmp_path, train__groups_per_step=9)
    train(tmp_path, train__steps=1, eval__every=0, checkpoint__keep_best=0)
    assert checkpoints(tmp_path) == [0, 1]


def change_corpus(files):
    text = (files / "corpus.jsonl").read_text()
    (files / "corpus.jsonl").write_text(text.replace("river", "lake"))
    shutil.rmtree(files / "index")  # as its own message says: it was built from the old corpus


def change_tasks(files):
    lines = (files / "train_tasks.jsonl").read_text().splitlines(keepends=True)
    (files / "train_tasks.jsonl").write_text("".join(lines[::-1]))


def change_questions(files):
    text = (files / "eval_tasks.jsonl").read_text()
    (files / "eval_tasks.jsonl").write_text(text.replace("?", " then?"))


def change_weights(files):
    tensors = load_file(files / "model" / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.01
    save_file(tensors, files / "model" / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (change_corpus, "corpus"),
        (change_tasks, "training tasks"),
        (change_questions, "evaluation tasks"),
        (change_weights, "base"),
    ],
)
def test_other_files_under_the_same_names(config, train, straight, tmp_path, change, name):
    """The run of a copy of the files goes on; it does not when one of them has changed."""
    files, run = tmp_path / "files", tmp_path / "run"
    shutil.copytree(Path(config.task.corpus).parent, files)
    task = replace(
        config.task,
        corpus=str(files / "corpus.jsonl"),
        train_tasks=str(files / "train_tasks.jsonl"),
        eval_tasks=str(files / "eval_tasks.jsonl"),
        index_dir=str(files / "index"),
    )
    moved = replace(config, task=task, model=replace(config.model, path=str(files / "model")))
    shutil.copytree(straight, run)
    (run / "config.json").write_text(to_json(moved))
    if name == "corpus":
        train(run, base=moved)
    change(files)
    with pytest.raises(UserError, match=f"the {name} changed since the run started"):
        train(run, base=moved)
