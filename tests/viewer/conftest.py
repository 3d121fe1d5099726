"""A small run folder as training leaves one: records through the real writer, metrics, a corpus with its index."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxsearchrl.records import CallRecord, EncounteredRecord, RolloutRecord, TurnRecord, write_records
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.telemetry.metrics_file import MetricsFile
from jaxsearchrl.trajectory import Span

GOLD = {
    "facts": [
        {"fact": "who made brooms", "chunk_ids": ["007", "015"], "is_final_answer": False},
        {"fact": "since when", "chunk_ids": ["021"], "is_final_answer": True},
    ]
}
DOCUMENTS = {"007": "Ada made brooms.", "015": "Brooms by Ada.", "021": "Since 1843.", "099": "Of kilns."}


def episode(**changes: Any) -> RolloutRecord:
    """Two turns: a search that shows 007 and 099, then 007 is curated. 12 tokens: 4, then 3 and 1, then 2 and 2."""
    search = TurnRecord(
        text="let me look",
        reasoning="brooms first",
        calls=(CallRecord("bm25_search", {"query": "who made brooms"}, outcome="found"),),
        observation="007 | Brooms | Ada made brooms.\n099 | Kilns | Of kilns.",
        encountered=(EncounteredRecord("007", 1), EncounteredRecord("099", 2)),
        seconds_model=2.0,
        seconds_tools=0.5,
        tokens=(4, 7),
    )
    curate = TurnRecord(
        calls=(CallRecord("curate", {"document_ids": ["007"]}, outcome="curated"), CallRecord("finish")),
        observation="curated 1: 007",
        curated=("007",),
        seconds_model=1.0,
        tokens=(8, 10),
    )
    fields: dict[str, Any] = {
        "run": "demo",
        "split": "train",
        "step": 1,
        "task_id": "q1",
        "group": 0,
        "attempt": 0,
        "uid": 0,
        "query": "Who made brooms, and since when?",
        "gold": GOLD,
        "tokens": tuple(range(100, 112)),
        "spans": (
            Span("prompt", 0, 4),
            Span("sampled", 4, 7),
            Span("observation", 7, 8),
            Span("sampled", 8, 10),
            Span("observation", 10, 12),
        ),
        "sample_logprobs": (-0.001, -0.3, -5.0, 0.0, -0.02),
        "turns": (search, curate),
        "score_parts": {"precision": 1.0, "recall": 0.5, "format_penalty": 0.0, "turns": 2.0},
        "reward": 0.5,
        "advantage": 0.1,
        "outcome": "partial",
        "stop_reason": "finish",
        "seconds": 3.5,
    }
    return RolloutRecord(**fields | changes)


def step_of(step: int, split: str = "train") -> list[RolloutRecord]:
    """Two questions with three tries each: q1 earns 0.5, 1 and -0.2, q2 nothing at all."""
    records = []
    for group, (task, rewards) in enumerate({"q1": (0.5, 1.0, -0.2), "q2": (0.0, 0.0, 0.0)}.items()):
        for attempt, reward in enumerate(rewards):
            outcome = {1.0: "complete", -0.2: "empty", 0.0: "none_relevant"}.get(reward, "partial")
            records.append(
                episode(
                    split=split,
                    step=step,
                    task_id=task,
                    group=group,
                    attempt=attempt,
                    uid=3 * group + attempt,
                    query=f"{task}: who made brooms?",
                    reward=reward,
                    advantage=None if split == "eval" else reward - sum(rewards) / 3,
                    outcome=outcome,
                )
            )
    return records


def make_run(folder: Path, records: Sequence[Sequence[RolloutRecord]] | None = None) -> Path:
    """Two training steps and an evaluation, or the records that are given, a list for each file."""
    corpus = folder.parent / "corpus.jsonl"
    corpus.parent.mkdir(parents=True, exist_ok=True)
    corpus.write_text(
        "".join(json.dumps({"id": i, "title": f"Title {i}", "text": text}) + "\n" for i, text in DOCUMENTS.items())
    )
    open_or_build(corpus)
    for step in records if records is not None else (step_of(1), step_of(2), step_of(0, "eval")):
        write_records(folder, step[0].split, step[0].step, step)
    metrics = MetricsFile(folder)
    metrics.append(0, "eval", {"reward": 0.2, "reward_low": 0.1, "reward_high": 0.3})
    metrics.append(1, "train", {"reward": 0.2, "entropy": 0.5, "data/position": 2})
    metrics.append(2, "train", {"reward": 0.4, "entropy": 0.01, "data/position": 2})
    config = {"name": "demo", "task": {"corpus": str(corpus)}, "sampling": {"capacity": 16}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    """A run that no test changes."""
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture
def new_run(tmp_path) -> Callable[..., Path]:
    """Makes a run of its own for a test."""
    return lambda records=None, name="demo": make_run(tmp_path / name, records)
