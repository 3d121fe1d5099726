"""Search-R1 by tags with Qwen2.5-1.5B-Instruct: configs/search_r1_0.5b.py on a larger model, for one GPU of 80 GB.

nano-agentrl has these settings for one GPU of 80 GB; its run was never made, so there is no result to compare with.
Not run by us.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("search_r1_0.5b.py")))
    return replace(base, name="", model=replace(base.model, path="data/Qwen2.5-1.5B-Instruct"))
