"""Names of topologies, and compiling for chips that are not there where their compiler is."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

from jaxsearchrl.config import MeshConfig
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.planning.gpus import GPUS
from jaxsearchrl.planning.targets import CHIPS, GIB, find_target

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("topology", "chips"),
    [("v5e:1x1", 1), ("v5e:2x4", 8), ("v6e:4x4", 16), ("v5p:2x2x2", 8), ("h100", 1), ("t4:2", 2), ("cpu", 1)],
)
def test_a_topology_says_how_many_chips(topology, chips):
    target = find_target(topology)
    assert (target.name, target.chips) == (topology, chips)
    assert target.chip.memory > 0


@pytest.mark.parametrize(
    ("topology", "hosts"),
    [("v5e:2x4", 1), ("v6e:4x4", 4), ("v5e:4x8", 8), ("v5p:2x2x1", 1), ("v5p:2x2x2", 2), ("h100:8", 1), ("h100:16", 2)],
)
def test_a_slice_has_hosts(topology, hosts):
    assert find_target(topology).hosts == hosts
    assert find_target("cpu").hosts == 1


def test_gpus_that_are_not_as_many_on_each_host_are_refused():
    """A plan would leave some out, and price them."""
    assert find_target("h100:12").hosts == 2
    with pytest.raises(UserError, match=r"'h100:9': a host has eight at most.*; name 8 or 16$"):
        find_target("h100:9")


def test_all_chips_of_several_hosts_or_none():
    with pytest.raises(ConfigError, match=r"mesh: 2 of the 4 chips of each host.*raise learning\.pack_rows"):
        find_target("v5e:4x4").mesh(MeshConfig(data=4, tensor=2))


@pytest.mark.parametrize(
    "topology", ["", "v5e", "v5e:2x2x1", "v5p:2x2", "v6e:0x2", "h100:0", "h100:", "h100:2x2", "v9:2x2", "cpu:2"]
)
def test_an_unknown_topology_names_the_known_ones(topology):
    with pytest.raises(UserError, match=r"is not known; known are v5e:2x4 .* a100, h100, h200, l4, t4"):
        find_target(topology)


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="libtpu is there")
def test_without_libtpu_the_error_names_the_command():
    with pytest.raises(UserError, match=rf'libtpu is missing.*pip install "jax\[tpu\]=={jax.__version__}"'):
        _ = find_target("v6e:2x2").mesh(MeshConfig())


@pytest.mark.skipif(find_spec("jax_cuda12_plugin") is not None, reason="the plugin is there")
def test_without_the_cuda_plugin_the_error_names_the_command():
    with pytest.raises(UserError, match=rf"jax_cuda12_plugin is missing.*jax-cuda12-pjrt=={jax.__version__}"):
        _ = find_target("h100").mesh(MeshConfig())


def test_memory_is_what_programs_may_use():
    assert CHIPS["v5e"].memory == CHIPS["v5e"].by_default == 15.75 * GIB
    assert CHIPS["h100"].memory == int(0.95 * 84942979072)
    assert CHIPS["h100"].by_default == int(0.75 * 84942979072)


def test_only_a_t4_has_no_bfloat16():
    assert [name for name, chip in CHIPS.items() if not chip.has_bfloat16] == ["t4"]


@pytest.mark.parametrize("name", GPUS)
def test_a_gpus_description_is_whole(name):
    text = GPUS[name].target_config()
    assert text.count("{") == text.count("}") == 4
    major, minor = GPUS[name].capability.split(".")
    assert f"cuda_compute_capability {{ major: {major} minor: {minor} " in text
    assert f"device_memory_size: {GPUS[name].memory} " in text


PRODUCT = """
import sys, jax, jax.numpy as jnp
jax.config.update("jax_platforms", "cpu")
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxsearchrl.config import MeshConfig
from jaxsearchrl.planning.programs import compile_program
from jaxsearchrl.planning.targets import find_target
for topology in sys.argv[1:]:
    target = find_target(topology)
    mesh = target.mesh(MeshConfig(tensor=target.chips))
    x = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=NamedSharding(mesh, P(None, "tensor")))
    program = compile_program(jax.jit(lambda x: x @ x.T).lower(x))
    assert not program.error, program.error
    print(topology, program.arguments, program.estimate is not None)
"""


def compile_products(*topologies) -> list[list[str]]:
    """In a process of its own: a TPU's compiler sets itself up once."""
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT, *topologies],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu")
def test_a_product_compiles_for_tpus():
    whole, quarter = 256 * 512 * 2, 256 * 512 * 2 // 4
    wanted = [["v5e:1x1", str(whole), "True"], ["v6e:2x2", str(quarter), "True"], ["v5p:2x2x1", str(quarter), "True"]]
    assert compile_products("v5e:1x1", "v6e:2x2", "v5p:2x2x1") == wanted


@pytest.mark.skipif(find_spec("jax_cuda12_plugin") is None, reason="needs the CUDA plugin")
def test_a_product_compiles_for_each_gpu():
    whole = 256 * 512 * 2
    assert compile_products(*GPUS, "h100:2") == [
        *([name, str(whole), "False"] for name in GPUS),
        ["h100:2", str(whole // 2), "False"],
    ]
