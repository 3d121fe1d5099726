"""A copy of the project's scripts, programs that stand in for clouds and clusters, and nothing else on the PATH.

So no real gcloud, docker or sbatch can be reached. LAUNCH_TEST_BASH names another bash to try the scripts with.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKES = ["gcloud", "aws", "docker", "podman", "sbatch", "srun", "squeue", "curl", "hf"]
TOOLS = [
    "awk",
    "cat",
    "cp",
    "dirname",
    "env",
    "git",
    "grep",
    "gzip",
    "id",
    "ln",
    "mkdir",
    "mv",
    "nohup",
    "rm",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sleep",
    "tail",
    "tar",
    "touch",
    "tr",
]


def _heed_signals() -> None:
    """A shell cannot trap what was ignored when it started, as under nohup or behind an `&`."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Project:
    """A user's clone, by default in a folder with a space and a quote in its name, and the world around it."""

    def __init__(self, folder: Path, clone: Path, name: str = "a user's clone") -> None:
        self.folder = folder / name
        self.fake = folder / "fake"
        self.bin = folder / "bin"
        self.home = folder / "home"
        for path in (self.fake, self.bin, self.home):
            path.mkdir()
        self.environment = {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "FAKE": str(self.fake),
            "LAUNCH_TPU_POLL_SECONDS": "0",
        }
        source = (Path(__file__).parent / "fake.py").read_text()
        for name in FAKES:
            self.program(name, source)
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name) or name)
        (self.bin / "bash").symlink_to(shutil.which(os.environ.get("LAUNCH_TEST_BASH", "bash")) or "bash")
        shutil.copytree(clone, self.folder)

    def program(self, name: str, source: str) -> None:
        """Puts a Python program on the PATH."""
        path = self.bin / name
        path.write_text(f"#!{sys.executable} -SE\n{source}")
        path.chmod(0o755)

    def words(self, call: str, *words: str) -> None:
        """What a stand-in does at each of its next calls (fake.py)."""
        (self.fake / call).write_text("\n".join(words))

    def start(self, script: str, *arguments: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [str(self.folder / "launch" / script), *arguments],
            cwd=self.home,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_signals,
        )

    def run(self, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(script, *arguments, **environment)
        try:
            out, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"{script} did not end") from None
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    def calls(self, *wanted: str) -> list[list[str]]:
        """The calls of stand-ins that have all of these words, in order."""
        path = self.fake / "calls.jsonl"
        calls = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in calls if set(wanted) <= set(call)]

    def story(self) -> list[str]:
        """What was asked of gcloud, without questions: create, scp, ssh.start, delete, ..."""
        story = []
        for name, *words in self.calls():
            if name != "gcloud" or "list" in words:
                continue
            command = next((word.split("=", 1)[1] for word in words if word.startswith("--command=")), "").split()
            words = [word for word in words if word != "alpha"]
            if command:
                story.append(f"ssh.{command[1] if 'tpu_host.sh' in command[0] else command[0]}")
            else:
                story.append(words[1] if words[0] == "storage" else words[3])
        return story


@pytest.fixture(scope="session")
def clone(tmp_path_factory) -> Path:
    """The scripts and the experiments, committed."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("launch", "configs"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / ".gitignore").write_text("runs/\n")
    user = ["-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=all"]):
        subprocess.run(["git", *user, *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def project(tmp_path, clone) -> Project:
    return Project(tmp_path, clone)


def wait_for(condition, seconds: float = 120) -> None:
    """Returns once the condition holds; fails when it does not in this time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def flags(call: Sequence[str]) -> dict[str, str]:
    """The --key=value words of a call."""
    return dict(word.removeprefix("--").split("=", 1) for word in call if word.startswith("--") and "=" in word)
