"""Writes metrics to metrics.jsonl and, from there, to the dashboards that the configuration asks for.

metrics.jsonl must succeed. The others are copies: when one fails (no network, no login, a full quota) it is switched
off with one warning, and the run goes on. All of them get the run's own step.
"""

import importlib
import importlib.util
import logging
import math
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from jaxsearchrl import hosts
from jaxsearchrl.config import TelemetryConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.run_folder import write_atomically
from jaxsearchrl.telemetry.metrics_file import MetricsFile

# A copy of the metrics elsewhere: step, kind, finite numbers.
Write = Callable[[int, str, Mapping[str, float]], None]
Close = Callable[[], None]

_log = logging.getLogger(__name__)


class MetricWriters:
    """All writers of a run; of several processes the first writes.

    Raises UserError naming the extra when wandb or swanlab is asked for and not installed; TensorBoard, which is on by
    default, is left out with a note.
    """

    def __init__(self, workdir: str | Path, config: TelemetryConfig) -> None:
        self._workdir = Path(workdir)
        self._last_step = 0
        self._not_finite: set[str] = set()
        self._closers: dict[str, Close] = {}
        self._writes: dict[str, Write] = {}
        self._wanted: dict[str, Callable[[], tuple[Write, Close]]] = {}
        if not hosts.is_first():
            return
        self._file = MetricsFile(workdir)
        if config.tensorboard and _installed("tensorboardX"):
            self._wanted["tensorboard"] = lambda: _open_tensorboard(self._workdir, self._last_step)
        elif config.tensorboard:
            _log.warning("TensorBoard events are not written: pip install 'jaxsearchrl[tensorboard]'")
        if config.wandb_project:
            _require("wandb", "telemetry.wandb_project")
            self._wanted["wandb"] = lambda: _open_wandb(self._workdir, config.wandb_project)
        if config.swanlab_project:
            _require("swanlab", "telemetry.swanlab_project")
            self._wanted["swanlab"] = lambda: _open_swanlab(self._workdir, config.swanlab_project)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def truncate_after(self, step: int) -> None:
        """Before a resumed run writes: drops what metrics.jsonl (and TensorBoard) say beyond the restored step."""
        hosts.once(lambda: self._file.truncate_after(step))
        self._last_step = step

    def write(self, step: int, kind: str, metrics: Mapping[str, float]) -> int:
        """Writes one row everywhere; returns how many numbers were not finite (null in the file, absent elsewhere)."""
        return hosts.once(self._write, step, kind, metrics)

    def _write(self, step: int, kind: str, metrics: Mapping[str, float]) -> int:
        not_finite = self._file.append(step, kind, metrics)
        broken = {f"{kind}/{name}" for name, value in metrics.items() if not math.isfinite(value)}
        if new := sorted(broken - self._not_finite):
            self._not_finite |= broken
            _log.warning("from step %d on, these metrics are not finite: %s", step, ", ".join(new))
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for name in list(self._wanted):
            try:
                if name not in self._writes:
                    # Opened at the first row: only then is it known after which step the run goes on.
                    self._writes[name], self._closers[name] = self._wanted[name]()
                self._writes[name](step, kind, finite)
            except Exception as error:
                del self._wanted[name]
                _log.warning("%s is switched off for this run, which goes on: %s", name, error)
        return not_finite

    def close(self) -> None:
        """Flushes the copies."""
        for name, close in self._closers.items():
            try:
                close()
            except Exception as error:
                _log.warning("%s did not close: %s", name, error)
        self._closers.clear()


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _require(module: str, key: str) -> None:
    if not _installed(module):
        raise UserError(
            f"{key} needs the package {module}: pip install 'jaxsearchrl[{module}]', or leave the key empty"
        )


def _open_tensorboard(workdir: Path, last_step: int) -> tuple[Write, Close]:
    from tensorboardX import SummaryWriter

    # purge_step hides the events that a resumed run does again. The suffix keeps its file apart from that of the run
    # that it goes on from: tensorboardX names files by the second, and overwrites.
    folder, suffix = str(workdir / "tensorboard"), f".after{last_step}"
    writer = SummaryWriter(folder, purge_step=last_step + 1, filename_suffix=suffix)

    def write(step: int, kind: str, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(f"{kind}/{name}", value, step)
        writer.flush()

    return write, writer.close


def _open_wandb(workdir: Path, project: str) -> tuple[Write, Close]:
    wandb: Any = importlib.import_module("wandb")
    run = wandb.init(
        project=project, name=workdir.resolve().name, dir=str(workdir), id=_remote_id(workdir), resume="allow"
    )
    # wandb's own counter refuses a step twice (train and eval, a resumed run): the step is a metric like the others.
    run.define_metric("*", step_metric="step")

    def write(step: int, kind: str, metrics: Mapping[str, float]) -> None:
        run.log({"step": step, **{f"{kind}/{name}": value for name, value in metrics.items()}})

    return write, run.finish


def _open_swanlab(workdir: Path, project: str) -> tuple[Write, Close]:
    swanlab: Any = importlib.import_module("swanlab")
    run = swanlab.init(
        project=project,
        experiment_name=workdir.resolve().name,
        logdir=str(workdir / "swanlab"),
        id=_remote_id(workdir),
        resume="allow",
    )

    def write(step: int, kind: str, metrics: Mapping[str, float]) -> None:
        run.log({f"{kind}/{name}": value for name, value in metrics.items()}, step=step)

    return write, run.finish


def _remote_id(workdir: Path) -> str:
    """The run's id on dashboards, made once: a resumed run goes on there under its id."""
    path = workdir / "dashboard_id"
    if not path.is_file():
        write_atomically(path, uuid.uuid4().hex[:21].encode())
    return path.read_text()
