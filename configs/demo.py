"""The demo: SmolLM2-135M learns to search 4,146 real passages on a CPU; no account, key or hub is needed.

A query joins two or three questions about different articles, so searching more than once pays. The model cannot call
tools at first: a short warm start imitates a rule that searches each question and curates the top hit, without looking
at the gold. Then RL. Everything is sized for two cores: short prompts, short results, few turns.
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
    WarmStartConfig,
)


def get_config() -> Config:
    """Ends within a quarter of an hour, too soon to learn much; 24 steps do learn (docs/experiments.md)."""
    return Config(
        name="demo",
        model=ModelConfig(path="demo"),
        lora=LoraConfig(rank=16, alpha=32.0),
        task=CuratedConfig(
            corpus="demo",
            train_tasks="demo",
            eval_tasks="demo",
            compact_results=True,
            max_turns=4,
            search_default_k=2,
            snippet_chars=60,
            max_observation_tokens=160,
            # How an episode ends must matter, else what the policy writes there drifts (docs/experiments.md).
            unfinished_penalty=0.1,
            format_penalty=0.1,
        ),
        chat=ChatConfig(terse_tools=True),
        # An observation is one or two chunks: on a CPU a call of more would mostly compute padding.
        sampling=SamplingConfig(
            slots=16, capacity=768, max_turn_tokens=160, extend_chunks=1, decode_steps=8, read_block=64
        ),
        learning=LearningConfig(learning_rate=2e-4, loss_constant=768.0, pack_rows=1, pack_tokens=1536),
        train=TrainConfig(steps=2, groups_per_step=2, group_size=8),
        eval=EvalConfig(every=2, tasks=6, tries=2, greedy=False),
        warm_start=WarmStartConfig(trajectories=36, rows_per_step=3, learning_rate=2e-3),
        checkpoint=CheckpointConfig(every=2),
    )
