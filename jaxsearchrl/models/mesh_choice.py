"""Which mesh a run takes where its settings name none: from the model's size and the devices that there are.

Devices that share rows and slots ("data") hold all weights and exchange next to nothing, so as many do as can. The
others cut weights and cache by heads ("tensor"): only so far as the heads divide, and at least so far that what a
device holds of the weights leaves most of its memory to the cache and to learning. "fsdp" is never chosen, since the
learner gathers all weights and a decode step exchanges more than with "tensor", and "expert" neither: the cache would
lie whole on every device.
"""

import math

import jax

from jaxsearchrl import hosts
from jaxsearchrl.config import Config, MeshConfig
from jaxsearchrl.models.architecture import Architecture
from jaxsearchrl.models.decoder import Model

WEIGHTS_SHARE = 0.4
"""Of a device's memory, at most, that its part of the base should take."""


def mesh_here(config: Config, model: Model) -> MeshConfig:
    """The settings' mesh, or the one chosen for this machine; of a CPU one device, since several share its cores.

    Processes choose alike: by as many devices as each of them has, and by the first one's memory.
    """
    device, processes = jax.local_devices()[0], jax.process_count()
    if device.platform == "cpu":
        return chosen_mesh(config, model.arch, 0, 1, None, processes)
    memory = hosts.once(lambda: (device.memory_stats() or {}).get("bytes_limit"))
    devices = min(len(jax.local_devices(process_index=number)) for number in range(processes))
    return chosen_mesh(config, model.arch, weight_bytes(model), devices, memory, processes)


def chosen_mesh(
    config: Config, arch: Architecture, size: int, devices: int, memory: int | None, processes: int = 1
) -> MeshConfig:
    """The settings' own mesh if they name one, else that of as many of the (equal) devices as can share the work.

    size: bytes of the whole base. devices: of each process. memory: bytes of a device; None where it is not known.
    """
    if config.mesh != MeshConfig():
        return config.mesh
    slots, rows = config.sampling.slots, config.learning.pack_rows
    meshes = [
        (data, tensor)
        for tensor in range(1, devices + 1)
        for data in range(1, devices // tensor + 1)
        if arch.kv_heads % tensor == 0 and slots % (processes * data) == 0 and rows % (processes * data) == 0
    ] or [(1, 1)]
    room = [(d, t) for d, t in meshes if memory is None or size / t <= WEIGHTS_SHARE * memory]
    # Where nothing leaves such room, the weights are cut as far as they can be; a plan says whether that fits.
    data, tensor = max(room, key=lambda m: (m[0] * m[1], m[0])) if room else max(meshes, key=lambda m: (m[1], m[0]))
    return MeshConfig(data=processes * data, tensor=tensor)


def weight_bytes(model: Model) -> int:
    """Of the whole base."""
    return sum(math.prod(spec.shape) * jax.numpy.dtype(spec.dtype).itemsize for spec in model.specs.values())
