"""The curated set on SEC filings with gpt-oss-20b: sec-search-rl's scaled run; configs/sec_4b.py has data and results.

    hf download openai/gpt-oss-20b --include "*.json" "*.jinja" "model-*.safetensors" --local-dir data/gpt-oss-20b

The system message is the routing line alone, as in the published runs. Experts stay in MXFP4. Not run by us.
"""

from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import ChatConfig, Config, ModelConfig
from jaxsearchrl.config_flags import load_config


def get_config() -> Config:
    base = load_config(str(Path(__file__).with_name("sec_4b.py")))
    model = ModelConfig(path="data/gpt-oss-20b", weights_dtype="bfloat16", packed_experts=True)
    return replace(base, name="", model=model, chat=ChatConfig(format="harmony", header="routing"))
