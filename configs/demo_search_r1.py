"""Search-R1 by tags on the demo's model and corpus: SmolLM2-135M answers SQuAD's and DROP's questions on a CPU.

The questions are those that configs/demo.py joins, one by one. The warm start imitates an expert that searches for the
question as it is and then says the gold answer, so it teaches the form, not where answers come from.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import ChatConfig, Config, SearchR1Config
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    demo = load_config(str(Path(__file__).with_name("demo.py")))
    return replace(
        demo,
        name="",
        task=SearchR1Config(
            corpus="demo",
            train_tasks="demo",
            eval_tasks="demo",
            max_turns=2,
            search_k=2,
            max_observation_tokens=200,
            format_weight=0.1,
        ),
        chat=ChatConfig(format="search_r1"),
        sampling=replace(demo.sampling, capacity=896, max_turn_tokens=80),
    )
