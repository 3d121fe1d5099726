"""The terminal view says what the page says, and no record controls the terminal."""

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.errors import UserError
from jaxsearchrl.records import CallRecord, TurnRecord
from jaxsearchrl.viewer.runs import find_runs
from jaxsearchrl.viewer.terminal import as_text, text_of
from tests.viewer.conftest import episode


def test_a_rollout_as_text():
    lines = as_text(episode(), colour=False).splitlines()
    assert lines[0] == "train step 1, task q1, try 0"
    assert "  o#  who made brooms [007, 015]" in lines
    assert "  ··  since when [021]" in lines
    assert '  > [s] bm25_search {"query": "who made brooms"} → found' in lines
    assert "  * gold document 007 at rank 1" in lines
    assert "    | 099 | Kilns | Of kilns." in lines
    assert "\033[33m  * gold document 007 at rank 1\033[0m" in as_text(episode(), colour=True).splitlines()


@given(st.text(st.characters()))
def test_no_text_controls_the_terminal(text):
    turn = TurnRecord(text=text, reasoning=text, calls=(CallRecord(text, {text: text}, False, text),), observation=text)
    hostile = episode(turns=(turn,), split=text, query=text, task_id=text, outcome=text, infrastructure_errors=(text,))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", as_text(hostile, colour=False))


def test_addresses(run_folder):
    runs = find_runs(run_folder)
    assert "try 1" in text_of(runs, "train/2/2", colour=False)
    assert len(text_of(runs, "train/2", colour=False).splitlines()) == 2 + 6
    above = find_runs(run_folder.parent)
    assert text_of(above, "demo/train/2/2", colour=False) == text_of(runs, "train/2/2", colour=False)
    for wrong in ("", "train", "train/9", "train/1/99", "other/train/1", "train/\u00b3", "train/1/" + "9" * 5000):
        with pytest.raises(UserError, match=r"train/2|no such (record|run)|recorded"):
            text_of(runs, wrong, colour=False)


def test_the_command_prints_it_and_explains_a_wrong_folder(run_folder, tmp_path):
    command = [sys.executable, "-m", "jaxsearchrl.viewer"]
    done = subprocess.run([*command, f"--workdir={run_folder}", "--text=eval/0/1"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("eval step 0, task q1, try 0")
    for wrong in ("--config.task.name=x", str(run_folder), "--nosuch"):
        done = subprocess.run([*command, f"--workdir={run_folder}", wrong], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert wrong.strip("-").partition("=")[0] in done.stderr
    done = subprocess.run([*command, f"--workdir={tmp_path}"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "no run in it" in done.stderr


def test_a_reader_who_has_seen_enough_and_a_terminal_without_unicode(new_run):
    text = "\u2713 " * 100_000
    folder = new_run([[episode(query=text)]])
    command = f"{sys.executable} -m jaxsearchrl.viewer --workdir={folder} --text=train/1/1"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(f"{command} | head -1", shell=True, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("train step 1, task q1, try 0\n", "")
    done = subprocess.run(command.split(), capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\\u2713") == 100_000
