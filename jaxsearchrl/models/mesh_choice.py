"""Which mesh a run takes where its settings name none: from the model's size and the devices that there are.

Devices that share rows and slots ("data") hold all weights and exchange next to nothing, so as many do as can. The
others cut weights and cache by heads ("tensor"): only so far as the heads divide, and at least so far that what a
device holds of the weights leaves most of its memory to the cache and to learning. "fsdp" is never chosen, since each
decode step would gather all weights, and "expert" neither: the cache would lie whole on every device.
"""

from jaxsearchrl.config import Config, MeshConfig
from jaxsearchrl.models.architecture import Architecture

WEIGHTS_SHARE = 0.4
"""Of a device's memory, at most, that its part of the base should take."""


def chosen_mesh(config: Config, arch: Architecture, weight_bytes: int, devices: int, memory: int | None) -> MeshConfig:
    """The settings' own mesh if they name one, else that of as many of the (equal) devices as can share the work.

    weight_bytes: of the whole base. memory: bytes of one device; None where it is not known.
    """
    if config.mesh != MeshConfig():
        return config.mesh
    meshes = [
        (data, tensor)
        for tensor in range(1, devices + 1)
        for data in range(1, devices // tensor + 1)
        if arch.kv_heads % tensor == 0 and config.sampling.slots % data == 0 and config.learning.pack_rows % data == 0
    ]
    room = [(d, t) for d, t in meshes if memory is None or weight_bytes / t <= WEIGHTS_SHARE * memory]
    # Where nothing leaves such room, the weights are cut as far as they can be; a plan says whether that fits.
    data, tensor = max(room, key=lambda m: (m[0] * m[1], m[0])) if room else max(meshes, key=lambda m: (m[1], m[0]))
    return MeshConfig(data=data, tensor=tensor)
