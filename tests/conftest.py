"""Settings of every test: the CPU unless JAX_PLATFORMS says otherwise, one torch thread."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch, in parity tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from hypothesis import settings

# A machine's speed is no property of the code, and a test that passed once must pass again.
settings.register_profile("jaxsearchrl", deadline=None, derandomize=True)
settings.load_profile("jaxsearchrl")
