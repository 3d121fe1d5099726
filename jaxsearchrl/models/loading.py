"""Weights from a checkpoint to the devices: each device's part of each weight is read, and no more.

A checkpoint may be larger than the host's memory; of its weights one at a time lies there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.decoder import Model, Weights, WeightSpec
from jaxsearchrl.models.files import BLOCKS, SCALES, Checkpoint

PACKED = (BLOCKS, SCALES)
Read = Callable[[tuple[slice, ...]], np.ndarray]


def load_base(
    model: Model, checkpoint: Checkpoint, shardings: Mapping[str, jax.sharding.Sharding] | None = None
) -> Weights:
    """Reads every declared weight, one at a time, in the declared dtype.

    shardings: how each lies on the devices, by the weights' names; without them all lie on the default device. Parts
    that several devices of this process share are read once. Raises ConfigError for a tensor of another shape.
    """
    base = {}
    for name, spec in model.specs.items():
        _check_shapes(checkpoint, spec)

        def read(index: tuple[slice, ...], spec: WeightSpec = spec) -> np.ndarray:
            return _read(checkpoint, spec, index)

        if shardings is None:
            array = jax.device_put(read((slice(None),) * len(spec.shape)))
        else:
            array = _sharded(spec, shardings[name], read)
        base[name] = jax.block_until_ready(array)  # else the host's copies of many weights wait for their transfer
    return base


def _sharded(spec: WeightSpec, sharding: jax.sharding.Sharding, read: Read) -> jax.Array:
    parts: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def part(index: Any) -> np.ndarray:
        key = tuple((cut.start, cut.stop) for cut in index)
        if key not in parts:
            parts[key] = read(index)
        return parts[key]

    return jax.make_array_from_callback(spec.shape, sharding, part, dtype=spec.dtype)


def _read(checkpoint: Checkpoint, spec: WeightSpec, index: tuple[slice, ...]) -> np.ndarray:
    """The part of a weight that `index`, a slice for each of its axes, cuts out."""
    sizes = [range(size)[cut] for size, cut in zip(spec.shape, index, strict=True)]
    part = np.empty([len(size) for size in sizes], spec.dtype)  # a copy: what a checkpoint gives may lie in the file
    if (packed := _packed(checkpoint, spec, index)) is not None:
        part[...] = packed
        return part
    if "*" not in spec.hf_name:
        stored = checkpoint.tensor(spec.hf_name, _turned(spec, index))
        part[...] = stored.swapaxes(-1, -2) if spec.turned else stored
        return part
    for number, matrix in zip(sizes[0], part, strict=True):
        matrix[...] = checkpoint.tensor(_numbered(spec, number), _turned(spec, index)[1:]).T
    return part


def _packed(checkpoint: Checkpoint, spec: WeightSpec, index: tuple[slice, ...]) -> np.ndarray | None:
    """The part of a weight in MXFP4 that stays so; None for any other."""
    if not spec.hf_name.endswith(PACKED):
        return None
    name = spec.hf_name.removesuffix(BLOCKS).removesuffix(SCALES)
    both = checkpoint.packed(name, index[:3])
    if both is None:
        raise ConfigError(f"{name} is not stored in MXFP4: set model.packed_experts=false")
    return both[0][..., index[3]] if spec.hf_name.endswith(BLOCKS) else both[1]


def _check_shapes(checkpoint: Checkpoint, spec: WeightSpec) -> None:
    if spec.hf_name.endswith(PACKED):
        return  # the checkpoint has seen to it that both parts fit the matrix
    stacked = "*" in spec.hf_name
    expected = _turned(spec, spec.shape)[stacked:]
    for name in [_numbered(spec, i) for i in range(spec.shape[0])] if stacked else [spec.hf_name]:
        if checkpoint.shape(name) != expected:
            raise ConfigError(f"{name}: shape {checkpoint.shape(name)} in the checkpoint, {expected} expected")


def _turned(spec: WeightSpec, axes: tuple[Any, ...]) -> tuple[Any, ...]:
    """What belongs to the axes of a weight, in the order of the checkpoint's axes."""
    return (*axes[:-2], axes[-1], axes[-2]) if spec.turned else axes


def _numbered(spec: WeightSpec, number: int) -> str:
    return spec.hf_name.replace("*", str(number))
