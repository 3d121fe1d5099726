"""Whether slots and packed rows can be shared out over a mesh: what is known without devices, and without JAX."""

import math
from collections.abc import Iterator

from jaxsearchrl.config import Config


def uneven(config: Config, data: int, fsdp: int) -> Iterator[str]:
    """A fault for each key that a mesh of these sizes would not cut evenly. data: 1 where only the devices tell."""
    for key, size, axes in (
        ("sampling.slots", config.sampling.slots, {"mesh.data": data}),
        ("learning.pack_rows", config.learning.pack_rows, {"mesh.data": data, "mesh.fsdp": fsdp}),
    ):
        cut = {axis: parts for axis, parts in axes.items() if parts > 1}
        parts = math.prod(cut.values())
        if size % parts:
            by = f"{' x '.join(cut)} = {' x '.join(map(str, cut.values()))}"
            yield f"{key} = {size}: must be a multiple of {by}; raise it to {-(-size // parts) * parts}"
