"""GSM8K in one turn on the demo's model: SmolLM2-135M works sums in words on a CPU.

The problems are GSM8K's test set, divided: what comes of it does not compare with published scores. The model is too
small to get many right; what it learns is the form, for which there is a reward.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import ChatConfig, Config, GSM8KConfig
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    demo = load_config(str(Path(__file__).with_name("demo.py")))
    return replace(
        demo,
        name="",
        task=GSM8KConfig(train_tasks="demo", eval_tasks="demo", format_weight=0.2),
        chat=ChatConfig(),
        sampling=replace(demo.sampling, max_turn_tokens=160),
        warm_start=replace(demo.warm_start, trajectories=12),
    )
