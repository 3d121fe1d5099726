"""The mesh of runs that name none."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from jaxsearchrl import hosts
from jaxsearchrl.config import Config, LoraConfig, MeshConfig
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.models.mesh_choice import chosen_mesh, mesh_here, weight_bytes
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


def test_all_processes_choose_one_mesh(monkeypatch):
    """Although this one has more devices and more memory than the first."""
    model = build_model(replace(tiny_architecture("llama", vocab_size=64), heads=24, kv_heads=4), LoraConfig())
    config = Config()
    config = replace(
        config, sampling=replace(config.sampling, slots=16), learning=replace(config.learning, pack_rows=16)
    )
    size = weight_bytes(model)
    device = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 10 * size})
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda process_index=1: [device] * (4, 8)[process_index])
    monkeypatch.setattr(hosts, "once", lambda action: action())
    assert mesh_here(config, model) == MeshConfig(data=8)
    monkeypatch.setattr(hosts, "once", lambda action: 2 * size)  # what the first has
    assert mesh_here(config, model) == MeshConfig(data=4, tensor=2)
