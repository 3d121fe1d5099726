"""Search-R1 by tags with Qwen2.5-3B-Instruct: configs/search_r1_0.5b.py on a larger model, for one GPU of 80 GB.

To compare with: Search-R1 with all parameters of Qwen2.5-3B-Instruct, 512 x 5 rollouts a step, dense retrieval: EM 39.7
on NQ, 33.1 on HotpotQA (arXiv:2503.09516). nano-agentrl's own run of this size was never made.
Not run by us.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("search_r1_0.5b.py")))
    return replace(base, name="", model=replace(base.model, path="data/Qwen2.5-3B-Instruct"))
