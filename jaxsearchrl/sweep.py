"""Trains one experiment once for each value of a setting, one run after the other, and draws the runs together.

python -m jaxsearchrl.sweep --config=configs/demo.py --workdir=sweeps/rate \\
    --key=learning.learning_rate --values=5e-5,1e-4,2e-4

Other settings are replaced as in jaxsearchrl.main and hold for all runs. Each run is a process with a run folder of its
own in --workdir; beside them stand plots/sweep.png and sweep.md. The same command resumes a sweep; with further values
it adds to it.
"""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from jaxsearchrl.config import Config
from jaxsearchrl.config_checks import validate
from jaxsearchrl.config_flags import STOPPED_BY_ALARM, Override, load_config, run_app
from jaxsearchrl.errors import UserError
from jaxsearchrl.interruption import Interruption, interruption
from jaxsearchrl.run_folder import RunFolder, local_folder, write_atomically
from jaxsearchrl.telemetry.sweep_plots import read_runs, summary, write_sweep_plot

_CONFIG = flags.DEFINE_string("config", None, "The experiment: a Python file with get_config() -> Config.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The folder of the sweep; by default sweeps/ and the key.")
_KEY = flags.DEFINE_string("key", None, "The setting to vary, e.g. learning.learning_rate.")
_VALUES = flags.DEFINE_list("values", [], "Its values, with commas between them.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Each run is a dry run: a tiny random model, for two steps.")


def main(overrides: Sequence[Override]) -> None:
    """Runs the sweep that the flags name. Raises UserError for whatever its user can put right."""
    if not (_CONFIG.value and _KEY.value and _VALUES.value):
        raise UserError("--config, --key and --values are needed; e.g. --key=learning.learning_rate --values=1e-5,1e-4")
    root = local_folder(_WORKDIR.value or f"sweeps/{_KEY.value}")
    names = run_names(_CONFIG.value, _KEY.value, _VALUES.value, overrides)
    settings = [f"--config.{key}={text}" for key, text in overrides]
    with RunFolder(root), interruption() as stop:
        for number, (name, value) in enumerate(names.items(), start=1):
            print(f"[{number}/{len(names)}] {name}", file=sys.stderr, flush=True)
            flag = ["--dry_run"] if _DRY_RUN.value else []
            varied = [f"--workdir={root / name}", *settings, f"--config.{_KEY.value}={value}", *flag]
            status = _run([sys.executable, "-m", "jaxsearchrl.main", f"--config={_CONFIG.value}", *varied], stop)
            if stop.asked:
                print("stopped on request; the same command goes on from there", file=sys.stderr)
                return
            if status not in (0, STOPPED_BY_ALARM):  # values that go wrong are a result of the sweep
                raise UserError(f"the run {name} ended with status {status} (above); the same command goes on from it")
            _show(root)


def run_names(config: str, key: str, values: Sequence[str], overrides: Sequence[Override]) -> dict[str, str]:
    """The folder of each value's run, in order. Raises UserError for a value that makes no valid run or comes twice."""
    names: dict[str, str] = {}
    runs: list[Config] = []
    for value in values:
        run = load_config(config, [*overrides, (key, value)])
        validate(run, check_files=False)
        name = f"{key.rpartition('.')[2]}={re.sub(r'[^A-Za-z0-9.+-]', '_', value)}"
        if run in runs or name in names:
            raise UserError(f"--values: {value!r} makes the same run as another value; leave it out")
        names[name] = value
        runs.append(run)
    return names


def _run(command: Sequence[str], stop: Interruption) -> int:
    """Runs a process to its end, and passes a SIGTERM on to it. Returns its exit status."""
    process = subprocess.Popen(command)
    try:
        while process.poll() is None and not stop.asked:
            time.sleep(0.2)
    finally:  # also at Ctrl-C, which the process had too
        if process.poll() is None:
            process.terminate()
    return process.wait()


def _show(root: Path) -> None:
    """Draws what the sweep has so far."""
    runs = read_runs(root)
    table = summary(runs)
    write_atomically(root / "sweep.md", table.encode())
    write_sweep_plot(runs, root / "plots" / "sweep.png")
    print(table, end="", flush=True)


if __name__ == "__main__":
    run_app(main)
