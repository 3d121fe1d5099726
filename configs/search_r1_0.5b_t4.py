"""Search-R1 by tags for one T4 of 16 GB: configs/search_r1_0.5b.py with 8 x 8 rollouts and 90 steps.

These are the sizes of nano-agentrl's published run (two T4s, 2.9 hours, 116 s a step); its results are in that file.
The cache of 16 slots takes 2.1 GB, so slots are used in turn. Not run by us.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("search_r1_0.5b.py")))
    return replace(
        base,
        name="",
        sampling=replace(base.sampling, slots=16),
        learning=replace(base.learning, pack_rows=1),
        train=replace(base.train, steps=90, groups_per_step=8),
        checkpoint=replace(base.checkpoint, every=15),
        eval=replace(base.eval, every=45),
    )
