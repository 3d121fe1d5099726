"""The curated set on SEC filings with gpt-oss-20b: sec-search-rl's smaller runs; configs/sec_4b_256.py has their data.

docs/sec.md has the commands of its sweeps. Not run by us.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("sec_gptoss20b.py")))
    small = load_config(str(Path(__file__).with_name("sec_4b_256.py")))
    return replace(base, name="", task=small.task, train=small.train)
