"""How weights, adapter, cache and batches lie on a mesh: what each logical axis is cut by, in one table.

XLA's partitioner follows the weights and adds what the devices must exchange. An axis that the mesh's does not divide
stays whole: heads are never cut through.

With several processes the "data" axis is the outermost: each process has whole rows of the others, and so all weights
among its own devices. What only it computes it computes on its part of the mesh, over the same buffers (`local`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxsearchrl.config import Config, MeshConfig
from jaxsearchrl.config_mesh import uneven
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.decoder import Model, Weights
from jaxsearchrl.models.state import KeyValues, LayerCache, Recurrent

AXES = ("data", "fsdp", "tensor", "expert")

ROW_AXES = ("data", "fsdp")
"""Over which packed rows, and the actions in them, are shared out."""

MESH_AXES: Mapping[str, str | tuple[str, ...]] = {
    "row": ROW_AXES,
    "slot": "data",
    "width": "fsdp",
    "expert": "expert",
    "expert_in": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "cache_heads": ("tensor", "fsdp"),
    "memory_heads": ("tensor", "fsdp"),
    "mlp": "tensor",
    "expert_out": "tensor",
    "delta_channels": "tensor",
    "delta_values": "tensor",
    "delta_heads": "tensor",
}
"""Mesh axes of each logical axis that is cut; all others are whole on every device.

Beside weights that "fsdp" cuts by their inputs a decode step adds up partial products, so that no weight is gathered.
The cache, which such weights leave whole, is cut by heads over the same devices, each of which attends to its own.
"""

Shardings = dict[str, NamedSharding]


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh | None:
    """The mesh of the first devices that it needs (of all by default); None for one device, where nothing is cut.

    Of several processes each gives as many. Raises as `mesh_sizes`, and ConfigError where they cannot.
    """
    if devices is None and jax.process_count() > 1:
        return _mesh_of_processes(config)
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(config, len(devices))
    count = math.prod(sizes)
    return Mesh(np.array(devices[:count]).reshape(sizes), AXES) if count > 1 else None


def _mesh_of_processes(config: MeshConfig) -> Mesh:
    own = [jax.local_devices(process_index=number) for number in range(jax.process_count())]
    sizes = mesh_sizes(config, min(map(len, own)), len(own))
    devices = [device for each in own for device in each[: math.prod(sizes) // len(own)]]
    return Mesh(np.array(devices).reshape(sizes), AXES)


def mesh_sizes(config: MeshConfig, devices: int, processes: int = 1) -> tuple[int, ...]:
    """The sizes of `AXES` for so many devices of each process. Raises ConfigError where there are too few."""
    others = config.fsdp * config.tensor * config.expert
    sizes = (config.data or processes * max(1, devices // others), config.fsdp, config.tensor, config.expert)
    if processes == 1:
        if math.prod(sizes) > devices:
            named = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
            raise ConfigError(f"mesh: {named} are {math.prod(sizes)} devices, but there are {devices}")
    elif others > devices:
        raise ConfigError(
            f"mesh: fsdp {config.fsdp} x tensor {config.tensor} x expert {config.expert} are {others} devices, but a "
            f"process has {devices}: of several processes each must have room for all three"
        )
    elif sizes[0] % processes or sizes[0] // processes * others > devices:
        raise ConfigError(
            f"mesh.data = {sizes[0]}: must be a multiple of {processes}, one for each process, and at most "
            f"{processes * (devices // others)}; set mesh.data = 0 for as many as there are devices for"
        )
    return sizes


def check_cut(config: Config, mesh: Mesh | AbstractMesh) -> None:
    """Raises ConfigError where slots or packed rows cannot be shared out evenly."""
    if faults := [*uneven(config, mesh.shape["data"], mesh.shape["fsdp"])]:
        raise ConfigError("; ".join(faults))


def describe(model: Model, mesh: Mesh, devices: int) -> str:
    """The mesh in words, and which of the model's axes it leaves whole although it has devices for them.

    devices: how many there are; where the mesh has fewer, it says so.
    """
    units, found = _units(model.arch), {}
    for spec in model.specs.values():
        for axis, size in zip(spec.logical, spec.shape, strict=True):
            by = MESH_AXES.get(axis)
            if isinstance(by, str) and units.get(axis, size) % mesh.shape[by]:
                found[axis] = f"{axis} ({units.get(axis, size)}, mesh.{by} = {mesh.shape[by]})"
    sizes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    kept = f"; whole on every device, as they do not divide: {', '.join(found.values())}" if found else ""
    idle = f"; {devices - mesh.size} devices are left over" if devices > mesh.size else ""
    return f"mesh of {mesh.size} devices: {sizes}{kept}{idle}"


def mesh_of(weights: Weights) -> Mesh | None:
    """The mesh that weights lie on; None for a single device."""
    sharding = next(iter(weights.values())).sharding
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) and mesh.size > 1 else None


def local(tree: Any) -> Any:
    """A view of arrays on this process's devices alone, over the same buffers; for one process the arrays themselves.

    Each process has all of every array that is not cut by "data".
    """
    return jax.tree.map(_local, tree)


def _local(array: jax.Array) -> jax.Array:
    if array.is_fully_addressable:
        return array
    parts = {shard.device: shard.data for shard in array.addressable_shards}
    if len(parts) == 1:
        return next(iter(parts.values()))
    sharding: Any = array.sharding
    devices = [device for device in sharding.mesh.devices.flat if device in parts]
    mesh = Mesh(np.array(devices).reshape(-1, *sharding.mesh.devices.shape[1:]), AXES)
    laid = NamedSharding(mesh, sharding.spec)
    return jax.make_array_from_single_device_arrays(array.shape, laid, [parts[device] for device in devices])


def put(tree: Any, laid: Any) -> Any:
    """Arrays as `laid` says, a tree like it, or None for the default device.

    On devices of several processes each gives its own devices their parts; all must have the same arrays.
    """
    return jax.device_put(tree, laid) if laid is None else jax.tree.map(_put, tree, laid)


def _put(array: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    if sharding.is_fully_addressable or (isinstance(array, jax.Array) and not array.is_fully_addressable):
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def whole(weights: Weights) -> jax.sharding.Sharding:
    """How something small lies beside weights: whole on each of their devices."""
    sharding = next(iter(weights.values())).sharding
    return NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else sharding


def row_parts(mesh: Mesh | AbstractMesh) -> int:
    """Among how many devices packed rows are shared out."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def rows(array: Any, mesh: Mesh) -> NamedSharding:
    """Of an array [B, ...] of packed rows, or of what is listed for them."""
    return _sharding(("row", *[""] * (array.ndim - 1)), array.shape, {}, mesh)


def state_shardings(state: Any, lora: Shardings, mesh: Mesh) -> Any:
    """Of an optimizer's state: moments lie as their weights do, whose names they bear; all else is whole."""
    other = NamedSharding(mesh, PartitionSpec())
    return jax.tree_util.tree_map_with_path(lambda path, _: lora.get(getattr(path[-1], "key", ""), other), state)


def shardings(model: Model, mesh: Mesh) -> Shardings:
    """Of each base weight, by name. An axis that the mesh's does not divide stays whole: heads are never cut."""
    units = _units(model.arch)
    return {name: _sharding(spec.logical, spec.shape, units, mesh) for name, spec in model.specs.items()}


def lora_shardings(model: Model, mesh: Mesh) -> Shardings:
    """Of each weight of the adapter: cut where the linear beside it is, and never by rank."""
    units = _units(model.arch)
    found = {}
    for name, shape in model.lora_shapes.items():
        linear, _, factor = name.rpartition(".")
        if len(shape) == 3:  # of all experts; their matrices have other names in MXFP4
            stacked, outputs, inputs = ("expert",), "expert_out", "expert_in"
        else:
            stacked, (outputs, inputs) = (), model.specs[f"{linear}.weight"].logical
        axes = (*stacked, inputs, "rank") if factor == "lora_a" else (*stacked, "rank", outputs)
        found[name] = _sharding(axes, shape, units, mesh)
    return found


def cache_shardings(cache: LayerCache, arch: Architecture, mesh: Mesh) -> LayerCache:
    """Of what slots keep for one layer, as a tree like it: by heads, so that a device has those that it computes."""
    units = _units(arch)

    def of(array: Any, *axes: str) -> Any:
        return _sharding(axes, array.shape, units, mesh)

    if isinstance(cache, KeyValues):
        axes = ("slot", "cache_heads", "positions")
        return KeyValues(of(cache.keys, *axes), of(cache.values, *axes))
    return Recurrent(
        inputs=of(cache.inputs, "slot", "kernel", "delta_channels"),
        memory=of(cache.memory, "slot", "memory_heads", "delta_key_dim", "delta_value_dim"),
    )


def _units(arch: Architecture) -> Mapping[str, int]:
    """How many whole things an axis has that must not be cut through; for other axes that is their size."""
    units = {"heads": arch.heads, "kv_heads": arch.kv_heads, "cache_heads": arch.kv_heads}
    if arch.delta:
        units |= {"delta_channels": arch.delta.key_heads, "delta_values": arch.delta.value_heads}
    return units


def _sharding(axes: tuple[str, ...], shape: tuple[int, ...], units: Mapping[str, int], mesh: Mesh) -> NamedSharding:
    def cut(axis: str, size: int) -> str | tuple[str, ...] | None:
        by = MESH_AXES.get(axis, ())
        names = [name for name in ([by] if isinstance(by, str) else by) if name in mesh.shape]
        while names and units.get(axis, size) % math.prod(mesh.shape[name] for name in names):
            names.pop()
        return tuple(names) if len(names) > 1 else names[0] if names else None

    return NamedSharding(mesh, PartitionSpec(*map(cut, axes, shape)))
