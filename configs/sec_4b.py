"""The curated set on SEC filings at full scale: sec-search-rl's scaled run, on Qwen3.5-4B.

    python -m jaxsearchrl.data harness1 --input=pat-jj/harness-1-train-data --output=data/sec

makes corpus and tasks (docs/data.md): 1,024 questions to train on, 64 held out, of which the first 32 are evaluated on.

To compare with, theirs on gpt-oss-20b: F4 over 32 held-out questions is 0.166 before, and after 16, 20 and 24 updates
(one standard error is about 0.03)

* 0.353, 0.424, 0.418 with this reward: F4, less 0.1 for an episode with a call out of form;
* 0.202, 0.284, 0.316 without that: `--config.task.format_penalty=0`;
* 0.246, 0.295, 0.305 with `--config.task.format_penalty=0 --config.task.discovery_bonus=0.2
  --config.task.document_cost=0.02`.

F1 instead of F4 is `--config.task.beta=1`.
What differs: the model (theirs is configs/sec_gptoss20b.py), whose calls are off form only where they cannot be read;
the index is Tantivy's and not SQLite's. Not run by us.
"""

from jaxsearchrl.config import (
    ChatConfig,
    CheckpointConfig,
    Config,
    CuratedConfig,
    EvalConfig,
    LearningConfig,
    LoraConfig,
    ModelConfig,
    SamplingConfig,
    TrainConfig,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(path="data/Qwen3.5-4B", weights_dtype="bfloat16"),
        lora=LoraConfig(rank=32, alpha=32.0),
        task=CuratedConfig(
            corpus="data/sec/corpus.jsonl",
            train_tasks="data/sec/train.jsonl",
            eval_tasks="data/sec/dev.jsonl",
            max_observation_tokens=4096,
            format_penalty=0.1,
            no_call="end",
            malformed_call="end",
        ),
        chat=ChatConfig(format="qwen_xml", thinking=False),
        # 30,720 tokens in all, 2,048 a turn, as there. A slot's keys and values take 2.0 GB (8 of 32 layers have some),
        # its recurrent states 0.15 GB: 35 GB for 16.
        sampling=SamplingConfig(
            slots=16, capacity=30720, max_turn_tokens=2048, chunk_tokens=256, decode_steps=32, read_block=512
        ),
        learning=LearningConfig(
            learning_rate=1e-4, b1=0.9, b2=0.95, eps=1e-8, loss_constant=30720.0, pack_rows=1, pack_tokens=30720
        ),
        train=TrainConfig(seed=42, steps=24, epochs=2, groups_per_step=64, group_size=8),
        eval=EvalConfig(every=4, tasks=32, tries=4, greedy=False),
        checkpoint=CheckpointConfig(every=1),
    )
