"""The entry point, as a user meets it: in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsearchrl.config import Config
from jaxsearchrl.config_tree import from_json

ROOT = Path(__file__).parents[1]
EXAMPLE = str(ROOT / "configs" / "curated_jsonl.py")


def jaxsearchrl(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "jaxsearchrl.main", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{environment.pop('before', '')}:{ROOT}", **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def no_jax(tmp_path):
    """A folder that, first on the path, makes `import jax` fail."""
    (tmp_path / "broken" / "jax").mkdir(parents=True)
    (tmp_path / "broken" / "jax" / "__init__.py").write_text("raise RuntimeError('jax was imported')\n")
    return str(tmp_path / "broken")


@pytest.fixture
def folder(tmp_path):
    """A user's folder with the files that the example wants."""
    (tmp_path / "data" / "model").mkdir(parents=True)
    task = {"id": "q1", "query": "Who made brooms?", "facts": [{"fact": "the maker", "chunk_ids": ["007"]}]}
    for name, content in (("model/config.json", {}), ("corpus.jsonl", {}), ("train_tasks.jsonl", task)):
        (tmp_path / "data" / name).write_text(json.dumps(content))
    (tmp_path / "data" / "eval_tasks.jsonl").write_text(json.dumps(task | {"id": "q2"}))
    return tmp_path


def test_help_needs_no_jax_and_lists_the_flags(tmp_path, no_jax):
    result = jaxsearchrl("--help", cwd=tmp_path, before=no_jax)
    for flag in ("--config", "--workdir", "--mode", "dry_run", "require_accelerator"):
        assert flag in result.stdout
    assert "Traceback" not in result.stderr


def test_check_prints_the_resolved_config_without_jax(folder, no_jax):
    result = jaxsearchrl(
        f"--config={EXAMPLE}",
        "--mode=check",
        "--config.train.seed",
        "7",
        "--config.eval.tries=2",
        "--config.train.groups_per_step=1",
        cwd=folder,
        before=no_jax,
    )
    assert result.returncode == 0, result.stderr
    config = from_json(Config, result.stdout, "stdout")
    assert (config.train.seed, config.eval.tries, config.name) == (7, 2, "curated_jsonl")
    assert config.sampling.capacity == json.loads(result.stdout)["learning"]["pack_tokens"]
    assert result.stderr == "the settings are valid; 1 training tasks and 1 evaluation tasks, for 1 steps\n"
    assert not (folder / "runs").exists()


def test_check_counts_the_tasks(folder, no_jax):
    result = jaxsearchrl(f"--config={EXAMPLE}", "--mode=check", cwd=folder, before=no_jax)
    assert result.returncode == 2
    assert "task.train_tasks has 1 tasks, fewer than train.groups_per_step = 8; lower that" in result.stderr


def test_check_reads_the_tasks_and_the_prompt(folder, no_jax):
    (folder / "prompt.txt").write_text("Search for {topic}.")
    other_prompt = "--config.task.prompt_file=prompt.txt"
    result = jaxsearchrl(f"--config={EXAMPLE}", "--mode=check", other_prompt, cwd=folder, before=no_jax)
    assert result.returncode == 2
    assert "prompt.txt has {topic}; known are {max_turns}" in result.stderr
    (folder / "data" / "eval_tasks.jsonl").write_text('{"id": "q2"}\n')
    result = jaxsearchrl(f"--config={EXAMPLE}", "--mode=check", cwd=folder, before=no_jax)
    assert result.returncode == 2
    assert "data/eval_tasks.jsonl:1" in result.stderr


def test_a_workdir_on_another_machine_is_refused_before_anything_is_written(folder):
    result = jaxsearchrl(f"--config={EXAMPLE}", "--dry_run", "--mode=check", "--workdir=gs://bucket/x", cwd=folder)
    assert result.returncode == 2
    assert "must be a local folder" in result.stderr
    assert not (folder / "gs:").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--config is missing"),
        (("--config=nope.py",), "--config=nope.py: no such file"),
        ((f"--config={EXAMPLE}",), "task.corpus = 'data/corpus.jsonl': no such file"),
        (
            (f"--config={EXAMPLE}", "--config.train.stpes=3"),
            "unknown key train.stpes; the nearest valid key is train.steps",
        ),
        ((f"--config={EXAMPLE}", "--config.train.steps"), "--config.train.steps lacks its value"),
        ((f"--config={EXAMPLE}", "--config.train.steps=x"), "train.steps = 'x': a whole number is wanted"),
        ((f"--config={EXAMPLE}", "--config.eval.player=expert"), "eval.player and eval.adapter are for --mode=eval"),
        ((f"--config={EXAMPLE}", "--config.alarms.stop_on=empty,entropy"), "each one of 'no signal', 'all bad', "),
        ((f"--config={EXAMPLE}", "train.steps=3"), "unexpected argument 'train.steps=3'"),
        ((f"--config={EXAMPLE}", "--wrkdir=x"), "Unknown command line flag 'wrkdir'"),
        ((f"--config={EXAMPLE}", "--mode=trian"), "should be one of <train|eval|sft|export|plan|check>"),
    ],
)
def test_a_users_fault_is_one_message_and_status_2(arguments, message, tmp_path, no_jax):
    result = jaxsearchrl(*arguments, cwd=tmp_path, before=no_jax)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_programs_fault_keeps_its_traceback(folder, no_jax):
    result = jaxsearchrl(f"--config={EXAMPLE}", cwd=folder, before=no_jax)
    assert result.returncode == 1
    assert "RuntimeError: jax was imported" in result.stderr


def test_a_required_accelerator_is_no_quiet_fallback_to_the_cpu(folder):
    result = jaxsearchrl(f"--config={EXAMPLE}", "--require_accelerator", cwd=folder, JAX_PLATFORMS="cpu")
    assert result.returncode == 2
    assert "JAX found only a CPU" in result.stderr


def test_each_mode_asks_for_the_files_it_needs(folder, no_jax):
    no_train = "--config.task.train_tasks="
    result = jaxsearchrl(f"--config={EXAMPLE}", no_train, "--mode=sft", cwd=folder, before=no_jax)
    assert result.returncode == 2
    assert "task.train_tasks is empty" in result.stderr
    result = jaxsearchrl(f"--config={EXAMPLE}", no_train, "--mode=eval", cwd=folder, before=no_jax)
    assert "task.train_tasks is empty" not in result.stderr
    no_eval = "--config.task.eval_tasks="
    result = jaxsearchrl(f"--config={EXAMPLE}", no_eval, "--mode=check", cwd=folder, before=no_jax)
    assert "task.eval_tasks is empty" in result.stderr
    result = jaxsearchrl(f"--config={EXAMPLE}", no_eval, "--mode=sft", cwd=folder, before=no_jax)
    assert "task.eval_tasks is empty" in result.stderr
    never = ("--config.eval.every=0", "--config.checkpoint.keep_best=0", "--config.train.groups_per_step=1")
    result = jaxsearchrl(f"--config={EXAMPLE}", no_eval, *never, "--mode=check", cwd=folder, before=no_jax)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_dry_run_of_the_example_trains_resumes_and_tells_only_what_matters(tmp_path):
    command = (f"--config={EXAMPLE}", "--dry_run", "--workdir=run")
    first = jaxsearchrl(*command, cwd=tmp_path, JAX_PLATFORMS="cpu")
    assert first.returncode == 0, first.stderr
    assert "step 2/2" in first.stdout + first.stderr
    assert "checkpoint_manager.py" not in first.stderr  # a line per phase, no flood
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    again = jaxsearchrl(*command, cwd=tmp_path, JAX_PLATFORMS="cpu")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == metrics  # the run is complete: nothing to add
    steps = [row for row in map(json.loads, metrics.splitlines()) if row["kind"] == "train"]
    assert any(row["learn/skipped"] == 0.0 for row in steps)  # the update is exercised, too
    assert all(row["calls"] > 0 for row in steps)  # and so are the tools
    other = jaxsearchrl(*command, "--config.learning.learning_rate=0.5", cwd=tmp_path, JAX_PLATFORMS="cpu")
    assert other.returncode == 2
    assert "learning.learning_rate: the run has 0.0001, this command 0.5" in other.stderr
