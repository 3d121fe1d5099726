"""launch/run.sh with real processes: signals, the time limit, and a bucket that is a folder."""

import os
import signal
import subprocess
import sys

import pytest

from tests.launch.conftest import ROOT, wait_for

pytestmark = pytest.mark.slow

# Counts requests to stop, saves at the first, and makes a checkpoint of the step after the last one that it finds.
PROGRAM = """
import os, pathlib, signal, sys, time
workdir = next(pathlib.Path(word.split("=")[1]) for word in sys.argv if word.startswith("--workdir="))
steps = [int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
step = max(steps, default=0) + 1
folder = workdir / "checkpoints" / str(step)
folder.mkdir(parents=True)
(folder / "state").write_text(str(step))
(workdir / "checkpoints" / f"{step + 1}.orbax-checkpoint-tmp").mkdir(exist_ok=True)
with (workdir / "metrics.jsonl").open("a") as file:
    file.write(f"{step}\\n")
asked = 0
def ask(*_):
    global asked
    asked += 1
signal.signal(signal.SIGTERM, ask)
(workdir / "ready").touch()
print(step, *sorted(steps), flush=True)
while "--wait" in sys.argv and not asked:
    time.sleep(0.05)
if asked:
    time.sleep(2.5)  # a second request would be counted
    (workdir / "asked").write_text(str(asked))
sys.exit(3 if "--fail" in sys.argv else 0)
"""


@pytest.fixture
def program(project):
    project.program("python", PROGRAM)
    return project


@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        pytest.param(signal.SIGTERM, False, id="kill"),
        pytest.param(signal.SIGINT, False, id="ctrl-c"),
        pytest.param(signal.SIGTERM, True, id="shutdown"),
    ],
)
def test_a_stop_reaches_the_program_once(program, number, to_all):
    """A second request would end it without saving. A shutdown sends one to every process."""
    runs = program.folder / "runs/r1"
    process = program.start("run.sh", "--name=r1", "--bucket=gs://bucket/x", "--", "--wait")
    wait_for((runs / "ready").exists)
    if to_all:
        listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
        for pid in [pid for pid, parent, _ in rows if parent == str(process.pid)]:
            os.kill(int(pid), number)
        os.kill(process.pid, number)
    else:
        os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert (runs / "asked").read_text() == "1"
    assert (program.fake / "bucket/bucket/x/r1/asked").exists()  # what it saved was copied


def test_the_time_limit_lets_it_save(program):
    result = program.run("run.sh", "--name=r1", "--max_hours=0.0006", "--", "--wait")
    assert result.returncode == 124
    assert "the time is over (--max_hours=0.0006)" in result.stderr
    assert (program.folder / "runs/r1/asked").read_text() == "1"


def test_it_returns_the_program_s_status_and_copies_what_a_failed_run_left(program):
    result = program.run("run.sh", "--name=r1", "--bucket=s3://bucket/x", "--", "--fail")
    assert result.returncode == 3
    assert (program.fake / "bucket/bucket/x/r1/checkpoints/1/state").read_text() == "1"


@pytest.mark.parametrize("bucket", ["gs://bucket/x", "s3://bucket/x"])
def test_a_run_goes_on_elsewhere_from_the_checkpoints_that_are_whole(program, bucket):
    there, here = program.fake / "bucket/bucket/x/r1", program.folder / "runs/r1"
    result = program.run("run.sh", "--name=r1", f"--bucket={bucket}")
    assert (result.returncode, result.stdout) == (0, "1\n"), result.stderr
    assert sorted(path.name for path in (there / "checkpoints").iterdir()) == ["1"]  # none that is not whole
    assert (there / "metrics.jsonl").read_text() == "1\n"
    # A machine that was lost while it copied step 2: it is there in part, and not in the list.
    (there / "checkpoints/2").mkdir()
    (there / "checkpoints/2/part").write_text("")
    here.rename(here.with_name("lost"))
    result = program.run("run.sh", "--name=r1", f"--bucket={bucket}")
    assert result.stdout == "2 1\n", result.stderr
    assert (there / "checkpoints.sent").read_text() == "1\n2\n"
    assert sorted(path.name for path in (there / "checkpoints/2").iterdir()) == ["state"]
    assert (there / "metrics.jsonl").read_text() == "1\n2\n"


def test_a_folder_that_is_here_is_not_replaced(program):
    program.run("run.sh", "--name=r1", "--bucket=gs://bucket/x")
    (program.fake / "bucket/bucket/x/r1/metrics.jsonl").write_text("older")
    program.run("run.sh", "--name=r1", "--bucket=gs://bucket/x")
    assert (program.folder / "runs/r1/metrics.jsonl").read_text() == "1\n2\n"


@pytest.mark.parametrize("call", ["storage.cp", "storage.rsync"])
def test_a_bucket_that_cannot_be_used_is_known_before_the_start(program, call):
    program.words(call, "1")
    result = program.run("run.sh", "--name=r1", "--bucket=gs://bucket/x")
    assert result.returncode == 2
    assert "cannot be" in result.stderr
    assert result.stdout == ""


def test_a_last_copy_that_fails_is_no_success(program):
    program.words("storage.rsync", "0", "1")
    result = program.run("run.sh", "--name=r1", "--bucket=gs://bucket/x")
    assert result.returncode == 1
    assert "not all of it is in gs://bucket/x" in result.stderr
    assert not (program.fake / "bucket/bucket/x/r1/checkpoints.sent").exists()


def test_it_copies_while_it_runs(program):
    process = program.start("run.sh", "--name=r1", "--bucket=gs://bucket/x", "--sync_minutes=0.02", "--", "--wait")
    wait_for((program.fake / "bucket/bucket/x/r1/checkpoints.sent").exists)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=120)


def test_several_machines_find_each_other_by_the_environment(project):
    project.program("python", "import os; print(*(os.environ['JAX_' + k] for k in KEYS))".replace("KEYS", str(JAX)))
    words = ("--name=r1", "--coordinator=10.0.0.1:1234", "--processes=2")
    assert project.run("run.sh", *words, "--process=1").stdout == "10.0.0.1:1234 2 1\n"
    for wrong in ("--process=2", "--coordinator=", "--coordinator=here"):
        assert project.run("run.sh", *words, wrong).returncode == 2


@pytest.mark.parametrize("left_out", ["coordinator", "processes", "process"])
def test_of_the_settings_of_several_machines_none_may_be_missing(project, left_out):
    words = {"coordinator": "10.0.0.1:1234", "processes": "2", "process": "0"}
    both = [f"--{key}={value}" for key, value in words.items() if key != left_out]
    result = project.run("run.sh", "--dry-run", "--name=r1", *both)
    assert result.returncode == 2
    assert f"missing: --{left_out}=" in result.stderr
    alone = project.run("run.sh", "--dry-run", "--name=r1", f"--{left_out}={words[left_out]}")
    assert alone.returncode == 2
    for key in words.keys() - {left_out}:
        assert f" --{key}=" in alone.stderr


JAX = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")


def test_its_command_is_one_of_the_program_s():
    """The real program, which checks flags and settings, and loads nothing."""
    words = ["--name=x", "--config=configs/demo.py", f"--python={sys.executable}", "--", "--mode=check"]
    script = [str(ROOT / "launch/run.sh"), *words, "--config.train.steps=7"]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert '"steps": 7' in result.stdout
    result = subprocess.run([*script, "--config.train.stpes=7"], capture_output=True, text=True, check=False)
    assert result.returncode == 2
