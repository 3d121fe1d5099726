"""Measures the sampler and the learner on random weights.

python -m benchmarks.run [--workload w1,w2,w3] [--size 135m] [--out figures.json]

Each workload runs in a process of its own, so that its peak memory and its compilations are its own. Programs are
compiled anew, never taken from the compilation cache. Two figures can be compared only if they come from one machine
and one time: look at CPU seconds, and pin a core (`taskset -c 0`) where others use the machine.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from jaxsearchrl.runtime import prepare

SIZES = ("tiny", "135m", "0.5b")


def workloads(size: str) -> dict[str, Callable[[], dict[str, float]]]:
    """What can be measured, by name. The tiny size has tiny lengths too."""
    from benchmarks.head import Head, run_head
    from benchmarks.learner import Learn, run_learner
    from benchmarks.sampler import Decode, Episode, run_decode, run_episode

    tiny = size == "tiny"
    decode = Decode(rows=2, prompt=24, new=8) if tiny else Decode()
    episode = Episode(rows=2, prompt=40, turns=3, sampled=6, observed=9) if tiny else Episode()
    learn = Learn(tokens=64) if tiny else Learn()
    head = Head(tokens=512, vocabulary=2000, width=16) if tiny else Head()
    return {
        "w1": lambda: run_decode(size, decode),
        "w2": lambda: run_episode(size, episode),
        "w3": lambda: run_learner(size, learn),
        "w3-8rows": lambda: run_learner(size, Learn(rows=8, tokens=learn.tokens)),
        "w3-4096": lambda: run_learner(size, Learn(tokens=4 * learn.tokens)),
        "head": lambda: run_head(size, head),
    }


NAMES = ("w1", "w2", "w3", "w3-8rows", "w3-4096", "head")


def measure(name: str, size: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of one workload and the facts of the machine; call it in a fresh process."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    prepare()
    from benchmarks.measure import machine, peak_memory_gib

    figures = workloads(size)[name]()
    return figures | {"peak memory GiB": peak_memory_gib()}, machine()


def run(names: Sequence[str], size: str) -> dict[str, Any]:
    """{"size", "machine", "workloads": {name: figures}}, printing each workload as it ends."""
    results: dict[str, Any] = {"size": size, "machine": {}, "workloads": {}}
    for name in names:
        with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as process:
            figures, results["machine"] = process.submit(measure, name, size).result()
        results["workloads"][name] = figures
        print(table(f"{name} ({size})", figures), flush=True)
    print(table("machine", results["machine"]))
    return results


def table(title: str, values: Mapping[str, Any]) -> str:
    """Two columns under a title."""
    width = max(len(key) for key in values)
    shown = {key: f"{value:,.3f}" if isinstance(value, float) else f"{value}" for key, value in values.items()}
    return "\n".join([title, *(f"  {key:<{width}}  {value}" for key, value in shown.items())])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workload", default="w1,w2,w3", help=f"names, by commas: {', '.join(NAMES)}")
    parser.add_argument("--size", default="135m", choices=SIZES)
    parser.add_argument("--out", help="a JSON file for the figures")
    arguments = parser.parse_args(argv)
    names = arguments.workload.split(",")
    for name in names:
        if name not in NAMES:
            parser.error(f"--workload: {name!r} is none of {', '.join(NAMES)}")
    results = run(names, arguments.size)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
