"""Starts the processes of one run on this machine, and waits for their ends."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ended:
    """status: negative for a signal. seconds: from the start of all to its end."""

    status: int
    out: str
    errors: str
    seconds: float


def run(
    script: str | Path,
    arguments: Sequence[Sequence[str]],
    *,
    devices: int,
    timeout: float = 600.0,
    environment: Mapping[str, str] | None = None,
) -> list[Ended]:
    """One process for each list of arguments, each with so many CPU devices; what still runs after `timeout` fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started, files, processes = time.monotonic(), [], []
    for number, words in enumerate(arguments):
        env = {
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_THREEFRY_PARTITIONABLE": "true",
        }
        if len(arguments) > 1:
            env |= {
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": str(len(arguments)),
                "JAX_PROCESS_ID": str(number),
            }
        out, errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        files.append((out, errors))
        command = [sys.executable, str(script), *words]
        processes.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors))
    ends: dict[int, float] = {}
    while len(ends) < len(processes) and time.monotonic() - started < timeout:
        for number, process in enumerate(processes):
            if number not in ends and process.poll() is not None:
                ends[number] = time.monotonic() - started
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.wait()
    results = []
    for number, (process, pair) in enumerate(zip(processes, files, strict=True)):
        texts = []
        for file in pair:
            file.seek(0)
            texts.append(file.read())
            file.close()
        assert number in ends, f"process {number} did not end within {timeout} s:\n{texts[1][-3000:]}"
        results.append(Ended(process.returncode, *texts, ends[number]))
    return results
