"""All launch scripts: their form, dry runs and refusals; Slurm, a container and Kaggle with stand-ins."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.launch.conftest import ROOT, flags

STARTERS = ("run.sh", "tpu.sh", "slurm.sh", "container.sh", "kaggle.sh")
BUCKET = "--bucket=gs://b/runs"


def test_shellcheck_finds_nothing():
    scripts = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "launch").glob("*.sh"))
    shellcheck = Path(sys.executable).with_name("shellcheck")
    result = subprocess.run([shellcheck, "-x", *scripts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_nothing_is_newer_than_the_bash_of_macos():
    for path in (ROOT / "launch").glob("*.sh"):
        if path.name in ("tpu_host.sh", "tpu_startup.sh", "slurm_job.sh"):
            continue  # these run on the machine that was asked for
        code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        found = re.findall(r"mapfile|readarray|declare -[gnA]|local -[nA]|\^\^\}|,,\}|\|&|&>>|wait -n|\$\{\w+@", code)
        assert not found, path


@pytest.mark.parametrize("script", STARTERS)
def test_a_dry_run_prints_commands_and_does_nothing(project, script):
    before = sorted(project.folder.rglob("*"))
    result = project.run(script, "--dry-run", "--name=r1", BUCKET, "--", "--config.x=it's")
    assert result.returncode == 0, result.stderr
    assert not project.calls()
    assert sorted(project.folder.rglob("*")) == before
    lines = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    words = [word for line in lines for word in shlex.split(line)]  # a shell can read each
    inner = [word.split("=", 1)[1] for word in words if word.startswith(("--wrap=", "--command=jaxsearchrl"))]
    words += [word for line in inner for word in shlex.split(line)]
    assert "--config.x=it's" in words


@pytest.mark.parametrize("script", STARTERS)
def test_help_tells_how_to_start_it(project, script):
    result = project.run(script, "--help")
    assert result.returncode == 0
    assert f"launch/{script} --name=" in result.stdout
    assert not result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--name is missing"),
        (("--name=",), "--name is missing"),
        *(
            ((f"--name={name}",), "1 to 40 of a-z, 0-9 and -, a letter first")
            for name in ("my run", "it's", 'a"b', "-rf", "../x", "Run", "é", "$(id)", "*", "a\nb", "a" * 41, "a-", "1a")
        ),
        (("--name=a", "--config=nope.py"), "--config=nope.py: no such file"),
        (("--name=a", "--config=-x.py"), "a Python file in the project's folder"),
        (("--name=a", "--config=../a b.py"), "a Python file in the project's folder"),
        (("--name=a", "--bucket=gs://b/x y"), "gs://bucket/folder or s3://bucket/folder"),
        (("--name=a", "--bucket=gs://b/../x;id"), "gs://bucket/folder or s3://bucket/folder"),
        (("--name=a", "--bucket=/tmp/x"), "gs://bucket/folder or s3://bucket/folder"),
        (("--name=a", "--max_hours=1h"), "--max_hours='1h': a number such as 12 or 0.5"),
        (("--name=a", "--max_hours=1e9"), "a number such as 12 or 0.5"),
        (("--name=a", "--mx_hours=1"), "unknown setting --mx_hours; launch/defaults.sh lists them"),
        (("--name=a", "--PATH=1"), "unknown setting --PATH"),
        (("--name=a", "--kep"), "unknown flag --kep"),
        (("--name=a", "x"), "unexpected argument 'x'"),
        (("--name=a", "--config.train.steps=3"), "is a flag of jaxsearchrl.main; put it after --"),
        (("--name=a", "--", "--workdir=/tmp"), "the run folder is runs/a"),
        (("--name=a", "--", "--workdir", "/tmp"), "the run folder is runs/a"),
        (("--name=a", "--", "--config=x.py"), "put --config before --"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_happens(project, words, message):
    result = project.run("run.sh", *words)
    assert result.returncode == 2
    assert f"{message}" in result.stderr
    assert result.stderr.startswith("error: ")
    assert not project.calls()


@pytest.mark.parametrize(
    ("script", "word", "message"),
    [
        ("tpu.sh", "--bucket=s3://b/x", "--bucket=gs://... is needed"),
        ("tpu.sh", "--tpu_zone=a b", "letters, digits"),
        ("tpu.sh", "--tpu_type=--spot", "letters, digits"),
        ("tpu.sh", "--tpu_capacity=cheap", "spot, on-demand or flex-start"),
        ("tpu.sh", "--tpu_data=data", "copy yours there first"),
        ("tpu.sh", "--slurm_gpus=2", "--slurm_gpus is a setting of launch/slurm.sh, not of tpu.sh"),
        ("slurm.sh", "--slurm_gpus=0", "a whole number from 1 on"),
        ("slurm.sh", "--slurm_partition=a b", "a partition's name"),
        ("slurm.sh", "--max_hours=0.1", "at least 10 minutes"),
        ("container.sh", "--container_engine=rm", "docker or podman"),
        ("container.sh", "--container_gpus=all --privileged", "all, a number, device=0,1 or nothing"),
        ("kaggle.sh", "--kaggle_resume=x", "a full path"),
    ],
)
def test_each_script_refuses_what_it_cannot_use(project, script, word, message):
    result = project.run(script, "--name=r1", BUCKET, word)
    assert result.returncode == 2
    assert message in result.stderr
    assert not [call for call in project.calls() if call[0] != "squeue"]


def test_a_flag_goes_before_the_environment_and_that_before_the_defaults(project):
    dry = ("--dry-run", "--name=r1", BUCKET)
    assert "--zone=us-west4-a" in project.run("tpu.sh", *dry).stdout
    assert "--zone=from-environment" in project.run("tpu.sh", *dry, LAUNCH_TPU_ZONE="from-environment").stdout
    result = project.run("tpu.sh", *dry, "--tpu_zone=from-flag", LAUNCH_TPU_ZONE="from-environment")
    assert "--zone=from-flag" in result.stdout


def test_a_missing_program_is_named(project):
    (project.bin / "gcloud").unlink()
    result = project.run("tpu.sh", "--name=r1", BUCKET)
    assert result.stderr == "error: gcloud is not on the PATH: install the Google Cloud SDK\n"


# ------------------------------------------------------------------------------------------------------------- Slurm


def test_slurm_gets_one_job_with_a_process_for_each_node(project):
    words = ("--name=r1", "--slurm_nodes=2", "--slurm_gpus=4", "--slurm_partition=gpu", "--max_hours=1.5")
    project.words("squeue", "say ")
    result = project.run("slurm.sh", *words, "--", "--config.x=a 'b'")
    assert result.returncode == 0, result.stderr
    [submitted] = project.calls("--requeue")
    asked = flags(submitted)
    job = shlex.split(asked.pop("wrap"))
    assert submitted[0] == "sbatch"
    assert asked == {
        "job-name": "r1",
        "nodes": "2",
        "ntasks-per-node": "1",
        "gpus-per-node": "4",
        "cpus-per-task": "8",
        "partition": "gpu",
        "time": "90",
        "signal": "TERM@300",
        "open-mode": "append",
        "output": "runs/r1.log",
        "chdir": str(project.folder),
    }
    # What it submitted, as Slurm would run it.
    words = "os.environ['JAX_LOCAL_DEVICE_IDS'], os.environ.get('JAXSEARCHRL_HOSTS'), *sys.argv[1:]"
    project.program("srun", f"import os, sys; print({words}, sep='|')")
    project.program("python", "")
    command = [str(project.folder / job[0]), *job[1:]]
    for nodes, found in (("1", "None"), ("2", "auto")):
        environment = {**project.environment, "SLURM_JOB_NUM_NODES": nodes}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert result.stdout == (
            f"0,1,2,3|{found}|--kill-on-bad-exit=1|--cpus-per-task=8|python|-m|jaxsearchrl.main|"
            "--config=configs/demo.py|--workdir=runs/r1|--require_accelerator|--config.x=a 'b'\n"
        )


def test_a_job_that_is_queued_is_not_submitted_again(project):
    project.words("squeue", "say 123")
    result = project.run("slurm.sh", "--name=r1")
    assert result.returncode == 0
    assert "as job 123: nothing was submitted" in result.stderr
    assert [call[0] for call in project.calls()] == ["squeue"]


def test_a_queue_that_cannot_be_read_submits_nothing(project):
    project.words("squeue", "1")
    assert project.run("slurm.sh", "--name=r1").returncode == 1
    assert [call[0] for call in project.calls()] == ["squeue"]


def test_jax_finds_slurm_s_processes_and_takes_all_gpus_of_a_node():
    """What launch/slurm_job.sh relies on: without JAX_LOCAL_DEVICE_IDS, JAX gives a Slurm task one GPU."""
    task = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": "1", "PROCID": "0", "LOCALID": "0"}
    environment = os.environ | {f"SLURM_{key}": value for key, value in task.items()} | {"JAX_PLATFORMS": "cpu"}
    source = "import jax; jax.distributed.initialize(); print(jax.process_count(), jax.config.values[KEY])".replace(
        "KEY", "'jax_cuda_visible_devices'"
    )
    for ids, seen in ((None, "1 0\n"), ("0,1,2,3", "1 0,1,2,3\n")):
        given = {"JAX_LOCAL_DEVICE_IDS": ids} if ids else {}
        result = subprocess.run([sys.executable, "-c", source], env=environment | given, capture_output=True, text=True)
        assert result.stdout == seen, result.stderr


# --------------------------------------------------------------------------------------------------------- containers


IMAGE = "jaxsearchrl:cuda12"


def test_a_container_is_built_and_run_with_what_it_needs(project):
    project.words("docker", "say ", "0")
    result = project.run("container.sh", "--name=r1", "--", "--config.x=a b")
    assert result.returncode == 0, result.stderr
    look, build, start = project.calls()
    assert look[:3] == ["docker", "ps", "--quiet"]
    assert build == [
        "docker",
        "build",
        "--file=launch/Containerfile",
        "--build-arg=EXTRA=cuda12",
        "--tag=jaxsearchrl:cuda12",
        ".",
    ]
    assert start[:5] == ["docker", "run", "--rm", "--init", "--name=jaxsearchrl-r1"]
    assert f"--volume={project.folder}/runs:/app/runs" in start
    assert "--gpus=all" in start
    assert start[-6:] == [
        "-m",
        "jaxsearchrl.main",
        "--config=configs/demo.py",
        "--workdir=runs/r1",
        "--require_accelerator",
        "--config.x=a b",
    ]


def test_a_container_that_runs_is_shown_and_not_started_again(project):
    project.words("docker", "say 0123abcd", "0")
    result = project.run("container.sh", "--name=r1")
    assert result.returncode == 0
    assert [call[1] for call in project.calls()] == ["ps", "logs"]


def test_an_image_that_cannot_be_built_is_not_run(project):
    project.words("docker", "say ", "1")
    assert project.run("container.sh", "--name=r1").returncode == 1
    assert [call[1] for call in project.calls()] == ["ps", "build"]


def test_the_container_file_copies_what_is_there_and_what_is_not_ignored():
    text = (ROOT / "launch/Containerfile").read_text()
    kept = {
        line[1:] for line in (ROOT / "launch/Containerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)


# ------------------------------------------------------------------------------------------------------------- Kaggle


def test_the_notebook_is_valid_and_its_commands_are_the_script_s(project):
    path = ROOT / "launch/kaggle.ipynb"
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    lines = [line for cell in notebook.cells if cell.cell_type == "code" for line in cell.source.splitlines()]
    commands = [line.removeprefix("!").replace("%cd", "cd") for line in lines]
    printed = project.run("kaggle.sh", "--dry-run", "--name=gsm8k").stdout.splitlines()
    source = shlex.quote(f"{project.folder}/.").replace("'\"'\"'", "'\\''")
    assert [line.replace(source, "/kaggle/input/jaxsearchrl/.") for line in printed] == commands


def test_kaggle_s_script_runs_and_resumes(project, tmp_path):
    project.program("python", "import sys; print(*sys.argv[1:], sep='|')")
    before = tmp_path / "input/runs/gsm8k"
    before.mkdir(parents=True)
    (before / "metrics.jsonl").write_text("1\n")
    places = (f"--kaggle_code={tmp_path}/code", f"--kaggle_working={tmp_path}/working", f"--kaggle_resume={before}")
    result = project.run("kaggle.sh", "--name=gsm8k", *places, "--", "--config.x=a b")
    assert result.returncode == 0, result.stderr
    *_, data, train = result.stdout.splitlines()
    assert data == "-m|jaxsearchrl.data|gsm8k|--input=openai/gsm8k|--output=data/gsm8k"
    given = ["--config=configs/gsm8k_0.5b_t4.py", "--workdir=runs/gsm8k", "--require_accelerator", "--config.x=a b"]
    assert train.split("|") == ["-m", "jaxsearchrl.main", *given]
    assert (tmp_path / "working/runs/gsm8k/metrics.jsonl").read_text() == "1\n"
    assert os.readlink(tmp_path / "code/runs") == f"{tmp_path}/working/runs"
