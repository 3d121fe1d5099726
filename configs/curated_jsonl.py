"""Your own corpus: curated-set search over JSONL files (docs/formats.md has their keys).

Put the files below under data/, or name others: --config.task.corpus=... Try the settings first with --dry_run.
"""

from jaxsearchrl.config import (
    Config,
    CuratedConfig,
    EvalConfig,
    LearningConfig,
    ModelConfig,
    SamplingConfig,
    TrainConfig,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(path="data/model", weights_dtype="bfloat16"),  # a Hugging Face folder
        task=CuratedConfig(
            corpus="data/corpus.jsonl",
            train_tasks="data/train_tasks.jsonl",
            eval_tasks="data/eval_tasks.jsonl",
            max_turns=10,
            max_observation_tokens=2048,
        ),
        # An episode is at most 8,192 tokens; the learner packs rows of the same length. The cache of these slots takes
        # 6.4 GB for Qwen2.5-0.5B; on a larger device take as many slots as a step has episodes.
        sampling=SamplingConfig(slots=32, capacity=8192, max_turn_tokens=1024),
        learning=LearningConfig(loss_constant=8192.0, pack_tokens=8192),
        train=TrainConfig(steps=64, groups_per_step=8, group_size=8),
        eval=EvalConfig(every=8, tasks=32, tries=4),
    )
