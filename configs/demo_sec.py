"""configs/sec_4b.py in demo size: its rules and penalties on the demo's model, passages and tasks, for two cores.

A model of this size needs the demo's short results and its warm start (configs/demo.py).
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("demo.py")))
    task = replace(base.task, format_penalty=0.1, unfinished_penalty=0.0, no_call="end", malformed_call="end")
    return replace(base, name="", task=task)
