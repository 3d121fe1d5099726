"""A sweep, as a user meets it: runs in processes of their own, side by side in one folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.sweep import run_names

ROOT = Path(__file__).parents[1]
CONFIG = str(ROOT / "configs" / "demo_gsm8k.py")
QUICK = ["--dry_run", "--config.eval.every=0", "--config.checkpoint.keep_best=0"]


def start(cwd, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "jaxsearchrl.sweep", f"--config={CONFIG}", *QUICK, *arguments]
    return subprocess.Popen(command, cwd=cwd, env=environment, **pipes)


def test_each_value_has_a_folder():
    names = run_names(CONFIG, "learning.learning_rate", ["1e-5", "1e-4"], [])
    assert names == {"learning_rate=1e-5": "1e-5", "learning_rate=1e-4": "1e-4"}
    assert list(run_names(CONFIG, "task.prompt_file", ["a/b c.txt"], [])) == ["prompt_file=a_b_c.txt"]


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("learning.learning_rat", ["1"], "learning_rate"),
        ("learning.learning_rate", ["1e-4", "fast"], "fast"),
        ("learning.learning_rate", ["1e-4", "0.0001"], "'0.0001' makes the same run"),
        ("train.group_size", ["1"], "group_size"),
    ],
)
def test_a_value_that_makes_no_run_of_its_own_is_refused_before_any_starts(key, values, words):
    with pytest.raises(UserError, match=words):
        run_names(CONFIG, key, values, [])


@pytest.mark.slow
def test_a_sweep_is_stopped_and_goes_on(tmp_path):
    arguments = ["--key=learning.learning_rate", "--values=1e-4,1e-3", "--workdir=rates"]
    process = start(tmp_path, *arguments)
    while not (tmp_path / "rates" / "learning_rate=1e-4" / "config.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert "stopped on request; the same command goes on" in process.communicate(timeout=300)[1]
    assert not (tmp_path / "rates" / "learning_rate=1e-3").exists()
    process = start(tmp_path, *arguments)
    table, log = process.communicate(timeout=300)
    assert process.returncode == 0, log
    rows = [line for line in table.splitlines() if line.startswith("| learning_rate=")]
    assert [row.split(" | ")[:3] for row in rows[-2:]] == [
        ["| learning_rate=1e-4", "2", "4"],
        ["| learning_rate=1e-3", "2", "4"],
    ]
    assert (tmp_path / "rates" / "plots" / "sweep.png").exists()
    assert (tmp_path / "rates" / "sweep.md").read_text() in table
