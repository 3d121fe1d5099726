"""How weights, adapter and cache lie on a mesh: what each logical axis is cut by, in one table.

The cut is by tensors: each device has some heads, some of an MLP's columns (of all experts', which are computed one
after the other), some of the vocabulary. XLA's partitioner follows the weights and adds what the devices must exchange.
"""

from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.decoder import Model
from jaxsearchrl.models.state import KeyValues, LayerCache, Recurrent

MESH_AXES = {
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "expert_out": "tensor",
    "delta_channels": "tensor",
    "delta_values": "tensor",
    "delta_heads": "tensor",
}
"""Mesh axis of each logical axis that is cut; all others are whole on every device."""

Shardings = dict[str, NamedSharding]


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
        axes = ("slot", "kv_heads", "position")
        return KeyValues(of(cache.keys, *axes), of(cache.values, *axes))
    return Recurrent(
        inputs=of(cache.inputs, "slot", "kernel", "delta_channels"),
        memory=of(cache.memory, "slot", "delta_heads", "delta_key_dim", "delta_value_dim"),
    )


def _units(arch: Architecture) -> Mapping[str, int]:
    """How many whole things an axis has that must not be cut through; for other axes that is their size."""
    units = {"heads": arch.heads, "kv_heads": arch.kv_heads}
    if arch.delta:
        units |= {"delta_channels": arch.delta.key_heads, "delta_values": arch.delta.value_heads}
    return units


def _sharding(axes: tuple[str, ...], shape: tuple[int, ...], units: Mapping[str, int], mesh: Mesh) -> NamedSharding:
    def cut(axis: str, size: int) -> str | None:
        by = MESH_AXES.get(axis)
        return by if by in mesh.shape and units.get(axis, size) % mesh.shape[by] == 0 else None

    return NamedSharding(mesh, PartitionSpec(*map(cut, axes, shape)))
