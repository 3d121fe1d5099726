"""What must be set before JAX is imported, and what a run says about the devices it found."""

import ctypes
import os
import platform

from jaxsearchrl import hosts
from jaxsearchrl.data.assets import cache_dir
from jaxsearchrl.errors import UserError


def prepare(*, exact_float32: bool = False) -> None:
    """Sets the environment's defaults, before JAX is imported; what the user has set stays.

    exact_float32: float32 products in full precision, as parity checks on a GPU or TPU need (by default these round the
    factors to TensorFloat-32 or bfloat16).
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir().resolve() / "xla"))
    os.environ.setdefault("JAX_THREEFRY_PARTITIONABLE", "true")  # samples do not depend on how an array is sharded
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors of XLA, not its chatter
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it misses PyTorch, which we do not need
    if exact_float32:
        os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Makes glibc reuse what was freed instead of handing it back to the system.

    On a CPU, JAX allocates a program's temporaries anew at each call; without this each call takes them page by page
    from the system, which was a fifth of the learner's time. Only the main arena can grow to such sizes, so
    there is one. Other C libraries, and a user's own settings of the allocator, are left alone.
    """
    if platform.libc_ver()[0] != "glibc" or any(n.startswith(("MALLOC_", "GLIBC_TUNABLES")) for n in os.environ):
        return
    arena_max, mmap_max, trim_threshold = -8, -4, -1  # names of malloc.h, see mallopt(3)
    for option, value in ((arena_max, 1), (mmap_max, 0), (trim_threshold, 2**31 - 1)):
        ctypes.CDLL(None).mallopt(option, value)


def announce_devices(*, require_accelerator: bool) -> None:
    """Prints the backend and its devices. Raises UserError when only a CPU is found but an accelerator is required."""
    import jax

    backend, devices = jax.default_backend(), jax.devices()
    if require_accelerator and backend == "cpu":
        raise UserError(
            "--require_accelerator: JAX found only a CPU; install jaxsearchrl[cuda12] or jaxsearchrl[tpu], and see "
            "that JAX_PLATFORMS allows it"
        )
    kind = devices[0].device_kind
    if hosts.is_first():
        several = f", of {hosts.count()} processes" if hosts.count() > 1 else ""
        print(f"jax {jax.__version__} on {backend}: {len(devices)} x {kind}{several}", flush=True)
