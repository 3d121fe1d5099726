"""SIGTERM is noticed at the next safe point; a second one does not wait for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsearchrl.interruption import Interrupted, interruption


def test_a_run_hears_of_sigterm_when_it_asks():
    before = signal.getsignal(signal.SIGTERM)
    with interruption() as state:
        state.check()
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(2):  # it stays asked
            with pytest.raises(Interrupted):
                state.check()
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_next_run_of_a_process_starts_unasked():
    with interruption():
        os.kill(os.getpid(), signal.SIGTERM)
    with interruption() as state:
        state.check()


def test_a_second_sigterm_acts_at_once():
    code = """
import os, signal
from jaxsearchrl.interruption import interruption
with interruption():
    os.kill(os.getpid(), signal.SIGTERM)
    print("first", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("second", flush=True)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, "first\n")
