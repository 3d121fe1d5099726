"""GSM8K in one turn with Qwen2.5-0.5B-Instruct: nano-agentrl's first run.

    python -m jaxsearchrl.data gsm8k --input=openai/gsm8k --output=data/gsm8k

makes the questions (docs/data.md). To compare with: exact match from 32.4 to 47.9 (one standard error 1.3 and 1.4) on
the 1,319 test questions after 200 steps of 8 x 8; truncated answers fell from 60 % to 3 % in the first 30 steps.
What differs: LoRA instead of all parameters, and so a learning rate twenty times as high (theirs is 1e-6); a constant
divides the loss, not a mean. Not run by us.
"""

from jaxsearchrl.config import (
    CheckpointConfig,
    Config,
    EvalConfig,
    GSM8KConfig,
    LearningConfig,
    LoraConfig,
    ModelConfig,
    SamplingConfig,
    TrainConfig,
)


def get_config() -> Config:
    return Config(
        model=ModelConfig(path="data/Qwen2.5-0.5B-Instruct", weights_dtype="bfloat16"),
        lora=LoraConfig(rank=32, alpha=64.0),
        task=GSM8KConfig(train_tasks="data/gsm8k/train.jsonl", eval_tasks="data/gsm8k/test.jsonl"),
        # A prompt of 256 and a turn of 512 tokens.
        sampling=SamplingConfig(slots=128, capacity=768, max_turn_tokens=512),
        learning=LearningConfig(
            loss="ppo",
            clip_low=0.2,
            clip_high=0.2,
            kl_weight=0.001,
            divide_by_deviation=True,
            learning_rate=2e-5,
            b2=0.999,
            max_grad_norm=1.0,
            loss_constant=512.0,
            pack_rows=4,
            pack_tokens=1536,
        ),
        train=TrainConfig(steps=500, groups_per_step=16, group_size=8),
        eval=EvalConfig(every=25, tasks=1319, tries=1, greedy=True),
        checkpoint=CheckpointConfig(every=25),
    )
