"""Accelerators that a program can be compiled for without having one: chips, how many, and their description to XLA."""

import math
import os
import re
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from jaxsearchrl.config import MeshConfig
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.models.sharding import AXES, mesh_sizes
from jaxsearchrl.planning.gpus import GPUS

GIB = 2**30
GPU_SHARE = 0.95
"""Of a GPU's memory, what JAX can be given at most (XLA_PYTHON_CLIENT_MEM_FRACTION): CUDA itself needs some."""
GPU_DEFAULT_SHARE = 0.75
"""What JAX takes unless it is told."""


@dataclass(frozen=True)
class Chip:
    """What one chip has and can do; rates are of its data sheet, without sparsity, and 0 where nobody states any.

    memory: bytes that programs may use. by_default: those that JAX takes unless it is told; less on a GPU. bfloat16,
    float32: matrix products by the dtype of their factors, FLOP/s; float32 as JAX takes it by default, rounded to
    bfloat16 on a TPU and to TensorFloat-32 on a GPU that has it. bandwidth: of its memory, bytes/s.
    """

    platform: Literal["tpu", "cuda", "cpu"]
    memory: int
    by_default: int
    bfloat16: float = 0.0
    float32: float = 0.0
    bandwidth: float = 0.0
    has_bfloat16: bool = True


def _gpu(name: str, bfloat16: float, float32: float) -> Chip:
    gpu = GPUS[name]
    memory, by_default = int(GPU_SHARE * gpu.memory), int(GPU_DEFAULT_SHARE * gpu.memory)
    return Chip("cuda", memory, by_default, bfloat16, float32, gpu.bandwidth, gpu.has_bfloat16)


def _tpu(memory: float, rate: float, bandwidth: float) -> Chip:
    return Chip("tpu", int(memory * GIB), int(memory * GIB), rate, rate, bandwidth)


# A TPU's memory is what its compiler lets programs have.
CHIPS = {
    "v5e": _tpu(15.75, 197e12, 819e9),
    "v6e": _tpu(31.25, 918e12, 1640e9),
    "v5p": _tpu(95.74, 459e12, 2765e9),
    "a100": _gpu("a100", 312e12, 156e12),
    "h100": _gpu("h100", 989e12, 495e12),
    "h200": _gpu("h200", 989e12, 495e12),
    "l4": _gpu("l4", 121e12, 60e12),
    "t4": _gpu("t4", 8.1e12, 8.1e12),  # no bfloat16: XLA computes with float32 there
}
KNOWN = (
    "v5e:2x4 and v6e:2x4 (or 1x1, 2x2, 4x4, ...), v5p:2x2x1 (or 2x2x2, ...), a100, h100, h200, l4, t4 (several of "
    "them: h100:2), and cpu, which is this machine"
)


@dataclass(frozen=True)
class Target:
    """Chips of one kind. layout: of TPU chips, XLA's ("2x4"); else empty."""

    kind: str
    chip: Chip
    chips: int = 1
    layout: str = ""

    @property
    def hosts(self) -> int:
        """How many hosts have them: eight chips are on one at most; of longer TPU slices, and of v5p, four."""
        alone = 4 if self.kind == "v5p" else 8
        return 1 if self.chips <= alone else -(-self.chips // (4 if self.chip.platform == "tpu" else 8))

    @property
    def name(self) -> str:
        """As `find_target` takes it."""
        return f"{self.kind}:{self.layout or self.chips}" if self.layout or self.chips > 1 else self.kind

    def mesh(self, config: MeshConfig) -> Mesh:
        """The mesh of the first chips that the settings need, as many of each host; of one chip too.

        Raises ConfigError for more chips than there are, or for some of a TPU's on several hosts, and UserError where
        the compiler is missing or knows no such topology.
        """
        each = self.chips // self.hosts
        sizes = mesh_sizes(config, each, self.hosts)
        used = math.prod(sizes) // self.hosts
        if self.chip.platform == "tpu" and self.hosts > 1 and used < each:
            # libtpu, with two of each host's four: "Unexpected device_id 8 ... target has 8 device_id".
            raise ConfigError(
                f"mesh: {used} of the {each} chips of each host, but a TPU's compiler wants all of several hosts: "
                "raise learning.pack_rows and sampling.slots until they divide, or set mesh.*"
            )
        devices = [device for i in range(self.hosts) for device in self._devices[i * each : i * each + used]]
        return Mesh(np.array(devices).reshape(sizes), AXES)

    @cached_property
    def _devices(self) -> list[Any]:
        if self.chip.platform == "cpu":
            return jax.devices("cpu")[:1]
        self._check_compiler()
        try:
            if self.chip.platform == "tpu":
                return _tpu_devices(self.kind, self.layout)
            config = GPUS[self.kind].target_config()
            return topologies.get_topology_desc(
                platform="cuda", topology=f"1x{self.hosts}x{self.chips // self.hosts}", target_config=config
            ).devices
        except jax.errors.JaxRuntimeError as error:
            raise UserError(f"--topology={self.name}: XLA refuses it: {error}") from None

    def _check_compiler(self) -> None:
        version = jax.__version__
        if self.chip.platform == "tpu":
            needed, command = ["libtpu"], f'pip install "jax[tpu]=={version}"'
        else:
            needed = ["jax_cuda12_plugin", "nvidia.cuda_nvcc"]
            command = (
                f"pip install jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version} nvidia-cuda-nvcc-cu12 "
                "nvidia-cuda-nvrtc-cu12 nvidia-cuda-cupti-cu12 nvidia-nvjitlink-cu12"
            )
        if missing := [module for module in needed if not _is_there(module)]:
            raise UserError(
                f"--topology={self.name}: its compiler is not installed ({missing[0]} is missing); no such chip is "
                f"needed, but this is: {command}"
            )


def find_target(topology: str) -> Target:
    """The chips that a topology names, as in `KNOWN`. Raises UserError for any other, or that hosts cannot share."""
    kind, colon, layout = topology.partition(":")
    if topology == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Target("cpu", Chip("cpu", memory, memory))
    if kind in GPUS and (not colon or re.fullmatch("[1-9][0-9]{0,2}", layout)):
        target = Target(kind, CHIPS[kind], chips=int(layout or 1))
        if target.chips % target.hosts:
            raise UserError(
                f"--topology={topology!r}: a host has eight at most, and each of several as many as the others; name "
                f"{target.chips // target.hosts * target.hosts} or {-(-target.chips // 8) * 8}"
            )
        return target
    dimensions = 3 if kind == "v5p" else 2
    if kind in CHIPS and kind not in GPUS and re.fullmatch("x".join(["[1-9][0-9]?"] * dimensions), layout):
        return Target(kind, CHIPS[kind], chips=math.prod(map(int, layout.split("x"))), layout=layout)
    raise UserError(f"--topology={topology!r} is not known; known are {KNOWN}")


def _tpu_devices(kind: str, layout: str) -> list[Any]:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else libtpu asks the network what machine this is
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # its lock is for chips, of which none is used
    # A host has 2 x 2 chips unless it is said to have fewer.
    x, y = (min(int(size), 2) for size in layout.split("x")[:2])
    description = topologies.get_topology_desc(
        topology_name=f"{kind}:{layout}", platform="tpu", chips_per_host_bounds=(x, y, 1)
    )
    return description.devices


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
