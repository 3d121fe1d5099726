"""NVIDIA GPUs as XLA's compiler is told about them: its GpuTargetConfig, one template and a small table.

Numbers of a100, h100 and h200 are those of XLA's own descriptions (openxla/xla, target_config/specs), those of l4 and
t4 of NVIDIA's data sheets and of the CUDA C++ programming guide's table of compute capabilities.
"""

from dataclasses import asdict, dataclass

_TEMPLATE = """
gpu_device_info {{
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory}  threads_per_core_limit: {threads}  core_count: {cores}
  fpus_per_core: {fpus}  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}  l2_cache_size: {l2_cache}  clock_rate_ghz: {clock}
  device_memory_size: {memory}  shared_memory_per_block_optin: {optin}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{name}"
"""


@dataclass(frozen=True)
class Gpu:
    """capability: of CUDA ("9.0"). memory, l2_cache, shared_memory (of a core), optin (of a block): bytes.

    bandwidth: bytes/s. clock: GHz. threads: of a core. features: whether code may be for this capability only ("9.0a").
    """

    name: str
    capability: str
    memory: int
    bandwidth: int
    cores: int
    fpus: int
    clock: float
    l2_cache: int
    shared_memory: int
    optin: int
    threads: int = 2048
    features: bool = False

    @property
    def has_bfloat16(self) -> bool:
        """Whether it has units for it: Ampere and later."""
        return int(self.capability.split(".")[0]) >= 8

    def target_config(self) -> str:
        """The description for `get_topology_desc`."""
        major, minor = self.capability.split(".")
        features = "ACCELERATED_FEATURES" if self.features else "NONE"
        return _TEMPLATE.format(**{**asdict(self), "major": major, "minor": minor, "features": features})


_HOPPER = {
    "capability": "9.0",
    "cores": 132,
    "fpus": 128,
    "clock": 1.98,
    "l2_cache": 52428800,
    "shared_memory": 233472,
    "optin": 232448,
    "features": True,
}

GPUS = {
    "a100": Gpu(
        "NVIDIA A100-SXM4-80GB",
        "8.0",
        memory=85100068864,
        bandwidth=2039040000000,
        cores=108,
        fpus=64,
        clock=1.41,
        l2_cache=41943040,
        shared_memory=167936,
        optin=166912,
    ),
    "h100": Gpu("NVIDIA H100 80GB HBM3", memory=84942979072, bandwidth=3352320000000, **_HOPPER),
    "h200": Gpu("NVIDIA H200 141GB HBM3e", memory=151397597184, bandwidth=4800000000000, **_HOPPER),
    "l4": Gpu(
        "NVIDIA L4",
        "8.9",
        memory=23800000000,
        bandwidth=300000000000,
        cores=58,
        fpus=128,
        clock=2.04,
        l2_cache=50331648,
        shared_memory=102400,
        optin=101376,
        threads=1536,
    ),
    "t4": Gpu(
        "Tesla T4",
        "7.5",
        memory=15840000000,
        bandwidth=320000000000,
        cores=40,
        fpus=64,
        clock=1.59,
        l2_cache=4194304,
        shared_memory=65536,
        optin=65536,
        threads=1024,
    ),
}
