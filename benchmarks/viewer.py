"""What the rollout explorer costs at full size: 24 steps of 512 rollouts with 30,000 tokens each, 12,288 in all.

    python -m benchmarks.viewer

Writes one step's records (about 200 MB, 100 MB compressed) into a temporary folder, links the file as the other 23
steps, starts the explorer on it and asks for pages over HTTP.
"""

import argparse
import http.client
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jaxsearchrl.records import CallRecord, EncounteredRecord, RecordWriter, RolloutRecord, TurnRecord, records_path
from jaxsearchrl.telemetry.metrics_file import MetricsFile
from jaxsearchrl.trajectory import Span

_TURNS, _WORDS = 20, 4000


def rollouts(count: int, tokens: int) -> Iterator[RolloutRecord]:
    """Records of 20 turns; a third of the tokens is sampled, the rest are answers. Groups of 8."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlucm", k=draw.randint(2, 9))) for _ in range(_WORDS)]
    sampled, observed = tokens // _TURNS // 3, tokens // _TURNS - tokens // _TURNS // 3

    def text(size: int) -> str:
        return " ".join(draw.choices(words, k=size))

    for number in range(count):
        spans, turns, end = [Span("prompt", 0, 400)], [], 400
        for _ in range(_TURNS):
            names = [f"doc_{draw.randrange(100_000)}" for _ in range(5)]
            spans += [Span("sampled", end, end + sampled), Span("observation", end + sampled, end + sampled + observed)]
            turns.append(
                TurnRecord(
                    reasoning=text(sampled * 2 // 3),
                    calls=(CallRecord("bm25_search", {"query": text(8)}, outcome="found"),),
                    observation="\n".join(f"{name} | {text(6)} | {text(observed // 8)}" for name in names),
                    encountered=tuple(EncounteredRecord(name, rank) for rank, name in enumerate(names, start=1)),
                    curated=tuple(names[:2]),
                    seconds_model=draw.random(),
                    tokens=(end, end + sampled),
                )
            )
            end += sampled + observed
        yield RolloutRecord(
            run="benchmark",
            split="train",
            step=1,
            task_id=f"task-{number // 8}",
            group=number // 8,
            attempt=number % 8,
            uid=number,
            query=text(30),
            gold={"facts": [{"fact": text(9), "chunk_ids": [f"doc_{n}"]} for n in range(5)]},
            tokens=tuple(draw.randrange(150_000) for _ in range(end)),
            spans=tuple(spans),
            sample_logprobs=tuple(-draw.expovariate(2.0) for _ in range(sampled * _TURNS)),
            turns=tuple(turns),
            score_parts={"precision": draw.random(), "recall": draw.random()},
            reward=draw.random(),
            advantage=draw.random() - 0.5,
            outcome="partial",
            stop_reason="finish",
        )


def make_run(folder: Path, steps: int, count: int, tokens: int) -> Path:
    """A run folder of that size; returns a step's file."""
    with RecordWriter(folder, "train", 1) as writer:
        for record in rollouts(count, tokens):
            writer.append(record)
    metrics, first = MetricsFile(folder), records_path(folder, "train", 1)
    for step in range(1, steps + 1):
        metrics.append(step, "train", {"reward": step / steps, "entropy": 1 / step, "turns": 20.0})
        if step > 1:
            os.link(first, records_path(folder, "train", step))
    return first


class Explorer:
    """The explorer in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "jaxsearchrl.viewer", f"--workdir={folder}", "--port=0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        found = re.search(r"localhost:(\d+)", self._process.stdout.readline())
        assert found
        self._port = int(found[1])

    def ask(self, path: str) -> tuple[float, float, int]:
        """Seconds until the whole page has come, CPU seconds of the process meanwhile, and the page's bytes."""
        cpu, start = self._cpu_seconds(), time.perf_counter()
        connection = http.client.HTTPConnection("localhost", self._port, timeout=600)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return time.perf_counter() - start, self._cpu_seconds() - cpu, len(body)

    def _cpu_seconds(self) -> float:
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident megabytes (Linux)."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def stop(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.wait()


def main() -> None:
    """Prints a table for docs/viewer.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--folder", default="", help="keeps the run there, and takes it if it is there already")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary) / "run"
        file = records_path(folder, "train", 1)
        if not file.exists():
            make_run(folder, arguments.steps, arguments.rollouts, arguments.tokens)
        print(f"{arguments.steps} files of {file.stat().st_size / 1e6:.0f} MB")
        start = time.perf_counter()
        explorer = Explorer(folder)
        try:
            print(f"listening after {time.perf_counter() - start:.2f} s")
            _measure(explorer, arguments.steps, arguments.rollouts)
        finally:
            explorer.stop()


def _measure(explorer: Explorer, steps: int, count: int) -> None:
    draw = random.Random(1)

    def show(name: str, path: str) -> None:
        seconds, cpu, size = explorer.ask(path)
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {size / 1e6:.2f} |", flush=True)

    def views(name: str, some_steps: range) -> None:
        """The median and the longest of 20 rollouts."""
        asked = [
            explorer.ask(f"/rollouts/train/{draw.choice(some_steps)}/{draw.randint(1, count)}.html") for _ in range(20)
        ]
        for word, of in (("median", statistics.median), ("longest", max)):
            seconds, cpu, size = (of([one[which] for one in asked]) for which in range(3))
            print(f"| {name}, {word} of 20 | {seconds:.2f} | {cpu:.2f} | {size / 1e6:.2f} |", flush=True)

    print("| | seconds | CPU seconds | MB |\n|---|---|---|---|")
    show("first view: the run's page", "/")
    show("a step that was not read yet", "/rollouts/train/2.html")
    show("the same step again", "/rollouts/train/2.html")
    views("a rollout of it", range(2, 3))
    show("a rollout's tokens, as numbers", "/rollouts/train/2/7-tokens.html")
    show("text in any turn of a step", "/rollouts/train/2.html?text=doc_77")
    start = time.perf_counter()
    for step in range(1, steps + 1):
        explorer.ask(f"/rollouts/train/{step}.html")
    print(f"all other steps read after {time.perf_counter() - start:.0f} s; {explorer.memory():.0f} MB of memory")
    show("all questions", "/tasks.html")
    views("any rollout of the run", range(1, steps + 1))


if __name__ == "__main__":
    main()
