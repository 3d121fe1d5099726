"""The curated set on SEC filings: configs/sec_4b.py as sec-search-rl's smaller runs, 256 questions in updates of 32.

    python -m jaxsearchrl.data harness1 --input=pat-jj/harness-1-train-data --output=data/sec_256 --train_size=256

makes corpus and tasks (docs/data.md). One pass is eight updates. Not run by us.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("sec_4b.py")))
    files = {"corpus": "corpus", "train_tasks": "train", "eval_tasks": "dev"}
    task = replace(base.task, **{key: f"data/sec_256/{name}.jsonl" for key, name in files.items()})
    train = replace(base.train, steps=8, epochs=1, groups_per_step=32)
    return replace(base, name="", task=task, train=train)
