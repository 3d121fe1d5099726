"""GSM8K in one turn for one T4 of 16 GB: configs/gsm8k_0.5b.py with 8 x 8 rollouts and 200 steps.

These are the sizes of nano-agentrl's published run (two T4s, 4.8 hours, 86 s a step); its result is in that file.
Not run by us.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("gsm8k_0.5b.py")))
    return replace(
        base,
        name="",
        sampling=replace(base.sampling, slots=64),
        train=replace(base.train, steps=200, groups_per_step=8),
    )
