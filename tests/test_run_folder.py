"""The run folder: one live process at a time, whatever the way the last one ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.run_folder import RunFolder, write_atomically

HOLD = """
import sys, time
from jaxsearchrl.run_folder import RunFolder
run = RunFolder(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_by_pid_and_host_and_a_killed_one_is_no_obstacle(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {holder.pid} on {os.uname().nodename}"):
            RunFolder(tmp_path)
        holder.send_signal(signal.SIGKILL)
    with RunFolder(tmp_path) as run:
        assert (run.path / "run.lock").read_text().startswith(f"process {os.getpid()} on ")
    RunFolder(tmp_path).close()


def test_one_process_cannot_open_a_folder_twice(tmp_path: Path):
    with RunFolder(tmp_path), pytest.raises(UserError, match="choose another --workdir"):
        RunFolder(tmp_path)


def test_a_relative_workdir_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with RunFolder("runs/x") as run:
        assert run.path == tmp_path / "runs" / "x"
        assert run.path.is_dir()


def test_places_that_cannot_hold_a_run_are_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be opened"):
        RunFolder(tmp_path / "file")
    with pytest.raises(UserError, match="local folder"):
        RunFolder("gs://bucket/run")


def test_the_configuration_comes_back_and_a_broken_one_is_refused(tmp_path: Path):
    with RunFolder(tmp_path) as run:
        assert run.read_config() is None
        run.write_config('{"train": {"seed": 42}}')
        with pytest.raises(ValueError):
            run.write_config('{"train": ')
        assert run.read_config() == '{"train": {"seed": 42}}'
        (tmp_path / "config.json").write_bytes(b'{"name": "\xe9"}')
        with pytest.raises(UserError, match=r"config\.json: not UTF-8 text"):
            run.read_config()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_atomically(tmp_path / "a", b"old")

    def no_space(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
