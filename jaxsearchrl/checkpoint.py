"""Saves and restores everything that a run is, as one unit: device state by orbax, host state as JSON beside it.

Saving is synchronous: a LoRA state is some megabytes, and an error in a background thread would come up too late. A
step's folder gets its name when it is complete, so a killed save leaves only a temporary folder, which the next opening
removes. Beside each state lies a list of its leaves; restoring compares it with the wanted state first, because orbax
casts a wrong dtype silently and reports a wrong tree without naming the leaf.

Of several processes the first alone writes and reads, and gives the others what it read: each process has all of the
state among its devices, and the folders of different hosts need not be the same.
"""

import difflib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, LatestN, PreservationPolicy

from jaxsearchrl import hosts
from jaxsearchrl.errors import UserError
from jaxsearchrl.models.sharding import local, put

_TRASH = "deleted"


class Checkpoints:
    """The checkpoints in a folder (relative paths are resolved; the folder is made).

    Keeps the last `keep_last`, and of those that have a metric the `keep_best` with the highest; an old one goes after
    the next is complete. metric: a step's, asked for at each save, since an evaluation may be made up for after its
    step was saved. Raises UserError when `folder` is itself a single checkpoint.
    """

    def __init__(
        self,
        folder: str | Path,
        keep_last: int = 2,
        keep_best: int = 0,
        metric: Callable[[int], float | None] = lambda step: None,
    ) -> None:
        self.folder = Path(folder).expanduser().resolve()
        if (self.folder / "_CHECKPOINT_METADATA").exists():
            raise UserError(f"{self.folder} is a single checkpoint; pass its parent {self.folder.parent}")
        if not hosts.is_first():
            return
        self._empty_trash()
        for unfinished in self.folder.glob("*.orbax-checkpoint-tmp*"):  # not by orbax, which does it in the background
            shutil.rmtree(unfinished)
        self.folder.mkdir(parents=True, exist_ok=True)
        alone = ocp.options.MultiprocessingOptions(active_processes={0} if hosts.count() > 1 else None)
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=False,
            multiprocessing_options=alone,
            create=False,
            # Renamed first, deleted then: a kill in the middle leaves no half checkpoint among the whole ones.
            todelete_subdir=_TRASH,
            preservation_policy=AnyPreservationPolicy([LatestN(keep_last), _Best(keep_best, metric)]),
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases orbax's threads."""
        if hosts.is_first():
            self._manager.close()

    def steps(self) -> list[int]:
        """The complete checkpoints' steps, in order."""
        return hosts.once(lambda: sorted(self._manager.all_steps()))

    def save(self, step: int, state: Any, host: Mapping[str, Any]) -> None:
        """Saves a complete state; returns when it is on disk.

        state: any pytree of jax or numpy arrays (typed PRNG keys too). host: what JSON gives back unchanged.
        Raises ValueError for a step that is not above the last one, or a state or host that would not come back as it
        is; OSError when the disk refuses.
        """
        hosts.once(self._save, step, state, host)

    def _save(self, step: int, state: Any, host: Mapping[str, Any]) -> None:
        if json.loads(json.dumps(host, allow_nan=False)) != host:
            raise ValueError("the host state changes in JSON: use string keys and lists, not integer keys or tuples")
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(_of_first(state)),
            host=ocp.args.JsonSave(dict(host)),
            leaves=ocp.args.JsonSave(_leaves(state)),
        )
        if not self._manager.save(step, args=args):
            raise ValueError(f"step {step} was not saved: {self.folder} has steps {self._manager.all_steps()}")
        self._empty_trash()

    def restore_latest(self, abstract_state: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """(step, state, host) of the newest complete checkpoint, or None in an empty folder; see `restore`."""
        step = hosts.once(lambda: self._manager.latest_step())
        return None if step is None else (step, *self.restore(step, abstract_state))

    def host(self, step: int) -> dict[str, Any]:
        """The host state of a step alone. Raises UserError when the folder cannot be read."""
        try:
            return self._manager.restore(step, args=ocp.args.Composite(host=ocp.args.JsonRestore()))["host"]
        except Exception as error:  # as in `restore`
            raise UserError(f"{self.folder / str(step)} cannot be read ({error})") from error

    def restore(self, step: int, abstract_state: Any) -> tuple[Any, dict[str, Any]]:
        """(state, host) of one step, bit-equal to what was saved.

        abstract_state: the wanted tree of arrays or `jax.ShapeDtypeStruct`s; the restored arrays take its shardings.
        Raises UserError naming the leaf when the saved tree has other leaves, shapes or dtypes, and naming the folder
        when it cannot be read.
        """
        if hosts.count() == 1:
            return self._restore(step, abstract_state)
        state = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), abstract_state)
        host: dict[str, Any] = {}
        if hosts.is_first():
            state, host = self._restore(step, state)
        laid = jax.tree.map(lambda leaf: leaf.sharding, abstract_state)
        return put(hosts.arrays_of_first(state), laid), hosts.once(lambda: host)

    def _restore(self, step: int, abstract_state: Any) -> tuple[Any, dict[str, Any]]:
        steps = sorted(self._manager.all_steps())
        if step not in steps:
            raise UserError(f"{self.folder} has no checkpoint of step {step}; it has {steps or 'none'}")
        folder = self.folder / str(step)
        try:
            described = self._manager.restore(step, args=ocp.args.Composite(leaves=ocp.args.JsonRestore()))
            _compare_leaves(described["leaves"], _leaves(abstract_state), folder)
            target = jax.tree.map(_target, abstract_state)
            args = ocp.args.Composite(state=ocp.args.StandardRestore(target), host=ocp.args.JsonRestore())
            restored = self._manager.restore(step, args=args)
        except UserError:
            raise
        except Exception as error:  # of a damaged folder orbax and tensorstore raise whatever they met
            raise UserError(
                f"{folder} cannot be read ({error}); delete this folder to go on from the checkpoint before it"
            ) from error
        return restored["state"], restored["host"]

    def _empty_trash(self) -> None:
        shutil.rmtree(self.folder / _TRASH, ignore_errors=True)


@dataclass(frozen=True)
class _Best(PreservationPolicy):
    """The `n` steps with the highest metric; of equal ones the later."""

    n: int
    metric: Callable[[int], float | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        metrics = {checkpoint.step: self.metric(checkpoint.step) for checkpoint in checkpoints}
        found = sorted((metric, step) for step, metric in metrics.items() if metric is not None)
        best = {step for _, step in found[max(0, len(found) - self.n) :]}
        return [checkpoint.step in best for checkpoint in checkpoints]


def _of_first(state: Any) -> Any:
    """What orbax shall save. It takes arrays of several processes only where all of them call it."""
    return jax.device_get(local(state)) if hosts.count() > 1 else state


def _leaves(tree: Any) -> dict[str, str]:
    """Each leaf's path and its dtype and shape: {"['lora']['q_proj']": "float32[16, 64]"}."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    for name, leaf in leaves.items():
        if not hasattr(leaf, "dtype"):
            raise ValueError(f"state{name} is {leaf!r}, not an array")
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def _target(leaf: Any) -> Any:
    """What orbax should restore a leaf as: numpy as numpy, else on the sharding asked for (none: the first device)."""
    if isinstance(leaf, np.ndarray):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _compare_leaves(saved: Mapping[str, str], wanted: Mapping[str, str], folder: Path) -> None:
    for name in wanted:
        if name not in saved:
            near = difflib.get_close_matches(name, saved.keys() - wanted.keys(), n=1)
            hint = f" (it has state{near[0]})" if near else ""
            raise UserError(f"{folder} has no state{name}{hint}: it is the state of another configuration")
        if saved[name] != wanted[name]:
            raise UserError(f"{folder}: state{name} is {saved[name]}, but this configuration has {wanted[name]}")
    for name in saved:
        if name not in wanted:
            raise UserError(f"{folder} has state{name}, which this configuration lacks")
