"""What a piece of work costs: seconds, CPU seconds of this process, and programs that had to be compiled."""

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxsearchrl.telemetry.compilations import compilations


@dataclass
class Cost:
    """Filled in when the `with` block of `measured` ends."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    compilations: int = 0


@contextmanager
def measured() -> Iterator[Cost]:
    """The block must end by waiting for its results: JAX returns before the work is done."""
    cost = Cost()
    seconds, cpu_seconds, before = time.perf_counter(), time.process_time(), compilations()
    yield cost
    cost.seconds, cost.cpu_seconds = time.perf_counter() - seconds, time.process_time() - cpu_seconds
    cost.compilations = compilations() - before


def peak_memory_gib() -> float:
    """The largest resident size that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def machine() -> dict[str, str | int]:
    """What must be known to compare figures."""
    import jax

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", platform.processor()),
        "vector units": " ".join(flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags),
        "cores": os.cpu_count() or 0,
        "usable cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
    }
