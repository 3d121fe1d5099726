"""Accelerators that a program can be compiled for without having one: `Target.devices` are descriptions of chips.

For TPUs the package libtpu must be there; for an NVIDIA GPU the packages jax-cuda12-plugin, jax-cuda12-pjrt,
nvidia-cuda-nvcc-cu12, nvidia-cuda-nvrtc-cu12, nvidia-cuda-cupti-cu12 and nvidia-nvjitlink-cu12, and no libtpu.
"""

import os
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

GIB = 2**30


@dataclass(frozen=True)
class Target:
    """Chips of one kind in one mesh, over which tensors are cut. topology: XLA's name for what has at least as many.

    memory: bytes of one chip that programs may use; 0 for a CPU.
    """

    platform: str
    topology: str
    chips: int
    memory: int

    def mesh(self) -> Mesh:
        """The first `chips` chips, as one axis "tensor"."""
        return Mesh(np.array(self._devices()[: self.chips]), ("tensor",))

    def _devices(self) -> list[Any]:
        if self.platform == "cpu":
            return jax.devices("cpu")
        if self.platform == "tpu":
            os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else libtpu asks the network what machine this is
            os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
            os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
            return topologies.get_topology_desc(topology_name=self.topology, platform="tpu").devices
        return topologies.get_topology_desc(platform="cuda", topology=self.topology, target_config=H100).devices


# XLA's GpuTargetConfig.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152
  shared_memory_per_core: 233472  threads_per_core_limit: 2048  core_count: 132  fpus_per_core: 128
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000  l2_cache_size: 52428800  clock_rate_ghz: 1.98
  device_memory_size: 84942979072  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

TARGETS = {
    "cpu": Target("cpu", "", 1, 0),
    "v5e-1": Target("tpu", "v5e:2x2", 1, int(15.75 * GIB)),
    "v5e-8": Target("tpu", "v5e:2x4", 8, int(15.75 * GIB)),
    "v6e-4": Target("tpu", "v6e:2x2", 4, int(31.25 * GIB)),
    "v6e-8": Target("tpu", "v6e:2x4", 8, int(31.25 * GIB)),
    "v5p-4": Target("tpu", "v5p:2x2x1", 4, int(95.74 * GIB)),
    "h100": Target("cuda", "1x1x1", 1, 84942979072),
}
