"""launch/tpu.sh against a gcloud that stands in: what is asked of it in which order, and that no machine is left."""

import os
import shlex
import signal
import subprocess

import pytest

from tests.launch.conftest import flags, wait_for

pytestmark = pytest.mark.slow

RUN = ("--name=r1", "--bucket=gs://b/runs")
OTHERS = ("--tpu_project=p", "--tpu_service_account=a@b.c")
SET_UP = ["scp", "ssh.tar", "ssh.install"]
TRAIN = ["ssh.start", "ssh.follow"]


def left(project) -> bool:
    """Whether a machine is left that costs money."""
    return (project.fake / "queue").exists()


def test_a_machine_is_made_used_and_deleted_and_its_results_are_copied(project):
    result = project.run("tpu.sh", *RUN, "--tpu_data=gs://b/data", "--", "--config.train.steps=4")
    assert result.returncode == 0, result.stderr
    assert project.story() == ["create", *SET_UP, "ssh.data", *TRAIN, "delete", "rsync"]
    assert not left(project)
    [create] = project.calls("create")
    assert create[5] == "r1"
    assert "--spot" in create
    assert flags(create) == {
        "node-id": "r1",
        "zone": "us-west4-a",
        "accelerator-type": "v5litepod-8",
        "runtime-version": "v2-alpha-tpuv5-lite",
        "valid-until-duration": "86400s",
        "metadata": "launch-name=r1,launch-seconds=46800",
        "metadata-from-file": "startup-script=launch/tpu_startup.sh",
    }
    workers = [flags(call)["worker"] for call in project.calls("ssh")]
    assert workers == ["all"] * 5
    assert project.calls("rsync")[-1][-2:] == ["gs://b/runs/r1", "runs/r1"]


def test_what_a_user_passes_reaches_the_host_as_it_is(project):
    words = ["--config.x=it's", "a b", "$(touch /tmp/x); *", '"', "--", ""]
    project.run("tpu.sh", *RUN, "--", *words)
    command = flags(project.calls("ssh")[-1])["command"]
    assert shlex.split(command)[-len(words) :] == words


def test_a_flex_start_machine_has_its_end_from_the_start(project):
    project.run(
        "tpu.sh", *RUN, "--tpu_capacity=flex-start", "--max_hours=1.5", "--tpu_project=p", "--tpu_service_account=a@b.c"
    )
    [create] = project.calls("create")
    assert create[1] == "alpha"
    assert "--spot" not in create
    assert flags(create)["max-run-duration"] == "5400s"
    assert flags(create)["provisioning-model"] == "flex-start"
    assert (flags(create)["project"], flags(create)["service-account"]) == ("p", "a@b.c")


def test_it_waits_for_its_turn(project):
    project.words("queue_after_create", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 0
    assert len(project.calls("create")) == 1
    assert "r1: WAITING_FOR_RESOURCES" in result.stderr


@pytest.mark.parametrize("step", ["create", "scp", "ssh.install", "ssh.start"])
def test_a_failure_on_any_worker_ends_it_without_a_machine(project, step):
    project.words(step, "1")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 2
    assert "error: the r" in result.stderr  # the run failed; the request was refused
    assert project.story()[-1 if step not in ("ssh.start",) else -2] == "delete"
    assert not left(project)


def test_a_request_that_failed_is_not_made_again(project):
    project.words("queue_after_create", "FAILED")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 2
    assert "the request failed: gcloud compute tpus queued-resources describe r1" in result.stderr
    assert project.story() == ["create", "delete"]


def test_a_run_that_fails_ends_without_a_machine_and_with_its_results(project):
    project.words("ssh.follow", "2")
    project.words("ssh.alive", "1")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 2
    assert "the run failed" in result.stderr
    assert project.story() == ["create", *SET_UP, *TRAIN, "ssh.alive", "delete", "rsync"]
    assert not left(project)


def test_a_broken_connection_is_made_again(project):
    project.words("ssh.follow", "255", "255", "0")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 0
    again = ["ssh.alive", "ssh.follow"]
    assert project.story() == ["create", *SET_UP, *TRAIN, *again, *again, "delete", "rsync"]


@pytest.mark.parametrize("step", ["ssh.follow", "ssh.install"])
def test_a_preempted_run_goes_on_on_another_machine(project, step):
    project.words(step, "preempt", "0")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 0, result.stderr
    all_steps = [*SET_UP, *TRAIN]
    until = all_steps[: all_steps.index(step) + 1]
    assert project.story() == ["create", *until, "delete", "create", *all_steps, "delete", "rsync"]
    assert "machine 1 was preempted" in result.stderr
    assert not left(project)


def test_preemptions_are_bounded(project):
    project.words("ssh.follow", "preempt")
    result = project.run("tpu.sh", *RUN, "--tpu_machines=2")
    assert result.returncode == 2
    assert "machine 2 was preempted, and --tpu_machines=2" in result.stderr
    assert len(project.calls("create")) == 2
    assert not left(project)


@pytest.mark.parametrize(
    ("number", "status", "step"),
    [(signal.SIGINT, 130, "create"), (signal.SIGTERM, 143, "ssh.follow"), (signal.SIGHUP, 129, "ssh.install")],
)
def test_a_signal_deletes_the_machine(project, number, status, step):
    project.words(step, "hang")
    process = project.start("tpu.sh", *RUN)
    wait_for((project.fake / "hangs").exists)
    os.kill(process.pid, number) if number == signal.SIGTERM else os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors
    assert project.story()[-1] == "delete"
    assert not left(project)
    assert not (project.folder / "runs/.launch/r1/lock").exists()


def test_a_second_ctrl_c_does_not_stop_the_deletion(project):
    project.words("ssh.follow", "hang")
    process = project.start("tpu.sh", *RUN, LAUNCH_TPU_POLL_SECONDS="1")
    wait_for((project.fake / "hangs").exists)
    project.words("delete", "1", "0")  # the first is refused, and a pause follows
    os.killpg(process.pid, signal.SIGINT)
    wait_for(lambda: project.calls("delete"))
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
    assert not left(project)


def test_a_deletion_is_tried_again_and_its_failure_is_loud(project):
    project.words("delete", "1", "1", "0")
    assert project.run("tpu.sh", *RUN).returncode == 0
    assert len(project.calls("delete")) == 3
    assert not left(project)
    project.words("delete", "1")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 1
    assert "COULD NOT BE DELETED AND MAY COST MONEY" in result.stderr
    assert "gcloud compute tpus queued-resources delete r1 --zone=us-west4-a --quiet --force" in result.stderr


def test_a_machine_is_kept_on_demand_and_found_again(project):
    result = project.run("tpu.sh", *RUN, "--keep")
    assert "kept, and to be paid for" in result.stderr
    assert left(project)
    project.words("ssh.busy", "1")
    project.run("tpu.sh", *RUN)
    assert len(project.calls("create")) == 1
    assert not left(project)


def test_a_run_at_work_is_found_and_its_files_are_left_alone(project):
    project.words("queue", "ACTIVE")
    project.words("node", "READY")
    project.run("tpu.sh", *RUN)
    assert project.story() == ["ssh.busy", *TRAIN, "delete", "rsync"]


def test_a_machine_that_was_preempted_before_is_replaced(project):
    project.words("queue", "SUSPENDED")
    project.run("tpu.sh", *RUN)
    assert project.story()[:3] == ["delete", "create", "scp"]


def test_one_script_at_a_time(project):
    project.words("ssh.follow", "hang")
    process = project.start("tpu.sh", *RUN)
    wait_for((project.fake / "hangs").exists)
    second = project.run("tpu.sh", *RUN)
    assert second.returncode == 2
    assert f"launch/tpu.sh is at work for r1 (process {process.pid})" in second.stderr
    assert left(project)
    process.kill()  # no trap runs: the machine stays, and so does the lock
    process.communicate()
    project.words("ssh.follow", "0")
    third = project.run("tpu.sh", *RUN)
    assert third.returncode == 0, third.stderr
    assert "taking over" in third.stderr
    assert len(project.calls("create")) == 1
    assert not left(project)


def test_gcloud_that_does_not_answer_is_asked_again_and_nothing_is_made_on_a_guess(project):
    project.words("list", "1", "1", "0")
    assert project.run("tpu.sh", *RUN).returncode == 0
    assert len(project.calls("create")) == 1
    (project.fake / "calls.jsonl").unlink()
    project.words("list", "1")
    result = project.run("tpu.sh", *RUN)
    assert result.returncode == 2
    assert not project.calls("create")


def test_delete_deletes_and_does_nothing_else(project):
    project.words("queue", "ACTIVE")
    assert project.run("tpu.sh", *RUN, "--delete").returncode == 0
    assert project.story() == ["delete"]
    assert not left(project)


def test_uncommitted_configs_are_refused_since_the_machine_would_lack_them(project):
    (project.folder / "configs/mine.py").write_text("")
    result = project.run("tpu.sh", *RUN, "--config=configs/mine.py")
    assert "configs/mine.py is not committed" in result.stderr
    assert not project.calls("create")


def test_on_two_hosts_it_installs_runs_streams_and_resumes(project):
    """ssh runs the real host script, in a folder for each worker; the program is a stand-in that counts to 4."""
    for worker in "01":
        (project.fake / "hosts" / worker).mkdir(parents=True)
    project.program("python3", INSTALLER.format(python=project.bin / "program"))
    project.program("program", PROGRAM)
    project.words("ssh.follow", "preempt", "0")
    result = project.run("tpu.sh", *RUN, "--corpus=data/c.jsonl", "--", "--config.x=a 'b'")
    assert result.returncode == 0, result.stderr
    for worker in "01":
        assert f"[{worker}] auto --config.x=a 'b'" in result.stdout
        steps = (1, 2, 3, 4) if worker == "0" else (1, 2, 1, 2)  # only worker 0 has the run folder
        assert [line for line in result.stdout.splitlines() if line.startswith(f"[{worker}] step")] == [
            f"[{worker}] step {step}" for step in steps
        ]
        assert f"[{worker}] build data/c.jsonl" in result.stdout
    assert (project.folder / "runs/r1/checkpoints/4/state").read_text() == "4"
    uploads = [call for call in project.calls("cp") if call[-1].endswith("checkpoints.sent")]
    assert uploads  # by worker 0 only: worker 1's log has no copy of its own
    assert not (project.fake / "hosts/1/jaxsearchrl/runs/r1/checkpoints.sent").exists()


def test_a_process_that_got_the_number_of_the_run_s_is_not_taken_for_it(project):
    """After a reboot of the host; that process may live for ever."""
    state = project.folder / "runs/.launch/r1"
    state.mkdir(parents=True)
    (state / "pid").write_text(str(os.getpid()))
    (state / "log").write_text("the last line\n")
    assert project.run("tpu_host.sh", "busy", "--name=r1").returncode == 1
    assert project.run("tpu_host.sh", "alive", "--name=r1").returncode == 1
    result = project.run("tpu_host.sh", "follow", "--name=r1")
    assert (result.returncode, result.stdout) == (1, "[0] the last line\n")


INSTALLER = """
import os, pathlib
home = pathlib.Path.home()
uv = home / ".local/bin/uv"
uv.parent.mkdir(parents=True, exist_ok=True)
uv.write_text("#!/bin/sh\\nmkdir -p .venv/bin && ln -sf '{python}' .venv/bin/python\\n")
uv.chmod(0o755)
"""

PROGRAM = """
import os, pathlib, sys, time
if sys.argv[2] == "jaxsearchrl.search":
    sys.exit(print(*sys.argv[3:], flush=True))
workdir = next(pathlib.Path(word.split("=")[1]) for word in sys.argv if word.startswith("--workdir="))
print(os.environ.get("JAXSEARCHRL_HOSTS"), sys.argv[-1])
here = pathlib.Path(os.environ["FAKE"])
met = [here / "met0", here / "met1"]
met[int(os.environ["WORKER"])].touch()
# As processes wait for each other in jax.distributed; and `start` must not wait for the end.
end = time.time() + 200
calls = here / "calls.jsonl"
while time.time() < end and not (met[0].exists() and met[1].exists() and "sh follow" in calls.read_text()):
    time.sleep(0.05)
step = max([int(path.name) for path in (workdir / "checkpoints").glob("*")], default=0)
for step in range(step + 1, step + 3):
    folder = workdir / "checkpoints" / str(step)
    folder.mkdir(parents=True)
    (folder / "state").write_text(str(step))
    print("step", step, flush=True)
"""


def test_the_machine_deletes_itself_in_the_end(project):
    """The startup script, with systemd-run and the metadata server as stand-ins."""
    project.program("systemd-run", "import os, sys; print(*sys.argv[1:], sep='\\n')")
    project.program("curl", METADATA)
    script = project.folder / "launch/tpu_startup.sh"
    result = subprocess.run(["bash", str(script)], env=project.environment, capture_output=True, text=True, check=True)
    after, shell, flag, command = result.stdout.splitlines()
    assert (after, shell, flag) == ("--on-active=46800", "/bin/bash", "-lc")
    delete = "gcloud compute tpus queued-resources delete r1 --zone=us-west4-a --force --quiet --async"
    assert command == f"{delete} || shutdown --poweroff now"


METADATA = """
import sys
found = {"name": "r1", "seconds": "46800", "zone": "projects/1/zones/us-west4-a"}
print(found[sys.argv[-1].replace("-", "/").split("/")[-1]], end="")
"""
