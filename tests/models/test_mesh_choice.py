"""The mesh of runs that name none."""

from dataclasses import replace

import pytest

from jaxsearchrl.config import Config, MeshConfig
from jaxsearchrl.models.mesh_choice import chosen_mesh
from jaxsearchrl.models.tiny import tiny_architecture

GIB = 2**30


def choose(*, kv_heads=4, slots=16, rows=1, weights=1.0, devices=8, memory=16.0, processes=1, **mesh):
    config = Config(mesh=MeshConfig(**mesh))
    config = replace(
        config,
        sampling=replace(config.sampling, slots=slots),
        learning=replace(config.learning, pack_rows=rows),
    )
    arch = replace(tiny_architecture("llama", vocab_size=64), heads=24, kv_heads=kv_heads)
    memory = None if memory is None else int(memory * GIB)
    found = chosen_mesh(config, arch, int(weights * GIB), devices, memory, processes)
    return found.data, found.fsdp, found.tensor, found.expert


@pytest.mark.parametrize(
    ("about", "wanted"),
    [
        ({"rows": 8}, (8, 1, 1, 1)),  # a small model: all devices share rows and slots
        ({"rows": 4}, (4, 1, 2, 1)),  # rows for four only
        ({"rows": 8, "slots": 12}, (4, 1, 2, 1)),  # slots for four only
        ({"rows": 8, "weights": 20}, (2, 1, 4, 1)),  # 20 / 4 GiB are below 0.4 of 16
        ({"rows": 8, "weights": 12.8}, (4, 1, 2, 1)),  # just at the bound
        ({"rows": 8, "weights": 100}, (2, 1, 4, 1)),  # too large: cut as far as the heads divide
        ({"kv_heads": 2}, (1, 1, 2, 1)),  # one row and two heads: six devices are left over
        ({"kv_heads": 3, "devices": 4, "rows": 2}, (1, 1, 3, 1)),
        ({"kv_heads": 8}, (1, 1, 8, 1)),
        ({"devices": 1}, (1, 1, 1, 1)),
        ({"rows": 8, "weights": 100, "memory": None}, (8, 1, 1, 1)),
        ({"rows": 8, "processes": 2, "devices": 4}, (8, 1, 1, 1)),  # of two processes
        ({"rows": 2, "processes": 2, "devices": 4}, (2, 1, 4, 1)),
        ({"rows": 3, "processes": 2, "devices": 1}, (2, 1, 1, 1)),  # does not divide: the run says what to set
        ({"data": 1, "rows": 8}, (1, 1, 1, 1)),
        ({"fsdp": 2, "rows": 8}, (0, 2, 1, 1)),  # what the settings name is left as it is
    ],
)
def test_as_many_devices_as_can_share_the_work(about, wanted):
    assert choose(**about) == wanted
