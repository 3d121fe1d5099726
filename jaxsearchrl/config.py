"""The whole configuration: frozen dataclasses, one per part of the program.

A config file (`configs/*.py`) defines `get_config() -> Config`; `--config.section.key=value` replaces single values.
`config_flags.py` reads both, `config_checks.py` validates every value before anything loads.
"""

from dataclasses import dataclass, field
from typing import Literal

# The calls that one turn may have; what it has beyond them is refused with one answer.
MAX_CALLS_PER_TURN = 8
# Tokens that a chat format writes around a turn's answers, at most: 13 n + 10 for n of SmolLM2's, 5 n + 9 of Qwen's,
# about 12 n + 3 of gpt-oss's.
WRAPPING_TOKENS = 16 * (MAX_CALLS_PER_TURN + 1)


@dataclass(frozen=True)
class ModelConfig:
    """The weights to train on. `path` is a Hugging Face folder or a .gguf file; "demo" fetches the demo's model."""

    path: str = ""
    tokenizer: str = ""  # folder of the tokenizer; empty: beside (or inside) the weights
    weights_dtype: Literal["float32", "bfloat16"] = "float32"  # how the frozen base is stored
    packed_experts: bool = False  # gpt-oss's experts stay in MXFP4 on the device, a quarter of bfloat16


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank updates: y = x W + (alpha / rank) (x A) B on the chosen linears.

    modules: the last parts of their names ("q_proj", ...); empty: all linears but the output head.
    """

    rank: int = 16
    alpha: float = 32.0
    modules: tuple[str, ...] = ()
    start: str = ""  # a PEFT adapter's folder to begin with; empty: a new one, which changes nothing


@dataclass(frozen=True)
class MeshConfig:
    """How devices share the work: the sizes of the mesh's axes; what one axis divides it divides for all others.

    Where none is set, the mesh is chosen for the model and the devices (models/mesh_choice.py). data = 1 is one device.
    Of several processes each has an equal part of `data`, and all of the others.
    """

    data: int = 0  # packed rows of the learner, slots of the sampler; 0: as many as there are devices for
    fsdp: int = 1  # the base weights' inputs, gathered where they are used; packed rows as well
    tensor: int = 1  # heads, columns of MLPs, vocabulary
    expert: int = 1  # the experts of each layer


@dataclass(frozen=True)
class RetrieverConfig:
    """What answers searches: the index of `task.corpus`, or an engine elsewhere (docs/search.md).

    Tokens and keys come from environment variables.
    """

    kind: Literal["local", "search_r1", "elasticsearch", "zhihu", "wikipedia"] = "local"
    url: str = ""  # http://host:8000/retrieve; http://host:9200/index/_search; empty: zhihu's and wikipedia's own
    timeout: float = 15.0  # seconds of one request
    tries: int = 3  # requests for one search at most, pauses in between
    cache_file: str = ""  # keeps results, so that a run repeats without the engine; empty: none are kept
    title_field: str = "title"  # elasticsearch: names of a document's fields
    text_field: str = "text"
    id_field: str = ""  # empty: the hit's own _id


@dataclass(frozen=True)
class CuratedConfig:
    """The curated-set task (docs/tasks.md). Files are JSONL; "demo" as a path means the demo's own."""

    name: Literal["curated"] = "curated"
    corpus: str = ""
    train_tasks: str = ""
    eval_tasks: str = ""
    index_dir: str = ""  # empty: beside the corpus
    prompt_file: str = ""  # empty: the package's own
    beta: float = 4.0
    max_turns: int = 40
    max_tool_calls: int = 128
    search_default_k: int = 10
    search_max_k: int = 25
    snippet_chars: int = 220
    read_max_chars: int = 4000
    max_observation_tokens: int = 512  # of what one turn is answered; WRAPPING_TOKENS go around it
    max_curated: int = 30
    empty_penalty: float = -0.2  # the flat reward of an empty curated set, and of an ending by a malformed call
    format_penalty: float = 0.0  # subtracted once per episode that had a malformed or off-form call, on non-empty sets
    invalid_curation_penalty: float = 0.0  # subtracted per refused id
    unfinished_penalty: float = 0.0  # subtracted when the episode did not end by `finish`
    discovery_bonus: float = 0.0  # times the share of facts encountered anywhere
    document_cost: float = 0.0  # subtracted per curated document
    no_call: Literal["remind", "end"] = "remind"
    malformed_call: Literal["observe", "end"] = "observe"
    fan_out_queries: int = 0  # queries of one fan_out_search; 0: there is no such tool
    hide_seen: bool = False  # searches leave out what the episode was shown before
    show_tokens_left: bool = False  # beside the turn's number, how much of sampling.capacity is left
    compact_results: bool = (
        False  # short results (id, title, snippet lines) instead of the published JSON, and a short prompt
    )


@dataclass(frozen=True)
class SearchR1Config:
    """Search-R1 by tags: think, search, information and answer in one assistant message (docs/tasks.md)."""

    name: Literal["search_r1"] = "search_r1"
    corpus: str = ""
    train_tasks: str = ""
    eval_tasks: str = ""
    index_dir: str = ""  # empty: beside the corpus
    prompt_file: str = ""  # empty: the package's own
    retriever: RetrieverConfig = field(default_factory=RetrieverConfig)  # not local: corpus stays empty
    play: Literal["agent", "direct", "rag"] = "agent"  # direct: no search; rag: the hits of the raw question, one turn
    max_turns: int = 4  # turns that may search
    final_turn: bool = True  # one more, without search, for an episode that has not answered
    search_k: int = 3
    max_observation_tokens: int = 500  # of the documents that one search shows
    match: Literal["exact", "cover"] = "exact"
    format_reward: Literal["added", "structured"] = "added"  # structured: Search-R1 v0.3's table (docs/maths.md)
    format_weight: float = 0.0  # added to the reward when every turn has the form
    format_steps: int = 0  # steps over which that falls to 0; 0: it stays


@dataclass(frozen=True)
class SearchToolsConfig:
    """Search-R1 by tool calls: one `search` tool and a final line "Answer: ..." (docs/tasks.md)."""

    name: Literal["search_tools"] = "search_tools"
    corpus: str = ""
    train_tasks: str = ""
    eval_tasks: str = ""
    index_dir: str = ""  # empty: beside the corpus
    prompt_file: str = ""  # empty: the package's own
    retriever: RetrieverConfig = field(default_factory=RetrieverConfig)  # not local: corpus stays empty
    play: Literal["agent", "direct", "rag"] = "agent"  # direct: no search; rag: the hits of the raw question, one turn
    max_searches: int = 4
    max_turns: int = 6
    search_k: int = 3
    document_chars: int = 1200  # of a document's text in an observation
    max_observation_tokens: int = 1024
    invalid_reward: float = -0.1  # of an episode without exactly one answer line


@dataclass(frozen=True)
class GSM8KConfig:
    """Sums in words, answered in one turn without tools (docs/tasks.md)."""

    name: Literal["gsm8k"] = "gsm8k"
    train_tasks: str = ""
    eval_tasks: str = ""
    prompt_file: str = ""  # empty: the package's own
    format_weight: float = 0.0  # added to the reward when the answer stands in its tags
    format_steps: int = 0  # steps over which that falls to 0; 0: it stays


TaskConfig = CuratedConfig | SearchR1Config | SearchToolsConfig | GSM8KConfig


@dataclass(frozen=True)
class ChatConfig:
    """The wire format between messages and tokens (docs/formats.md)."""

    format: Literal["chatml", "search_r1", "qwen_xml", "harmony"] = "chatml"
    terse_tools: bool = False  # chatml: tools as one short line each instead of JSON schemas, for small contexts
    thinking: bool = True  # chatml, qwen_xml: False tells a Qwen3 or Qwen3.5 model not to reason before it speaks
    header: Literal["full", "routing"] = "full"  # harmony: routing says but where calls go (the published SEC runs)
    date: str = "2025-06-28"  # harmony: what the prompt says is today
    reasoning: Literal["low", "medium", "high"] = "medium"  # harmony: the effort that the prompt asks for


@dataclass(frozen=True)
class SamplingConfig:
    """The sampler: S slots of `capacity` positions each."""

    slots: int = 32
    capacity: int = 1024  # tokens of one episode: prompt, turns and observations
    max_turn_tokens: int = 256
    temperature: float = 1.0
    extend_chunks: int = 8  # chunks of one extend call
    chunk_tokens: int = 64
    decode_steps: int = 16  # tokens per dispatch
    read_block: int = 128  # keys per block of the attention loop
    cache_dtype: Literal["float32", "bfloat16"] = "float32"  # of keys and values; bfloat16 takes half, and rounds them
    tool_threads: int = 8
    deterministic: bool = True


@dataclass(frozen=True)
class LearningConfig:
    """The learner. Losses are sums over action tokens divided by N (trajectories of the step) times `loss_constant`.

    docs/maths.md has the losses. In the first update on a batch all of them have the same gradient.
    """

    loss: Literal["importance_sampling", "truncated", "ppo", "cispo"] = "importance_sampling"
    ratio_cap: float = 2.0  # truncated: the largest ratio
    clip_low: float = 0.2  # ppo, cispo: ratios count from 1 - clip_low …
    clip_high: float = 0.2  # … to 1 + clip_high
    kl_weight: float = 0.0  # of the k3 estimate of KL(policy, adapter at the start of RL)
    divide_by_deviation: bool = False  # GRPO's advantages instead of Dr. GRPO's
    updates_per_step: int = 1  # the step's groups are shared out among so many updates
    train_observations: bool = False  # the ablation: what the environment wrote is trained on as well
    loss_constant: float = 1024.0  # C of Dr. GRPO: the token budget of an episode
    learning_rate: float = 1e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-15
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0  # 0: no clipping; in units of the gradient times loss_constant
    pack_rows: int = 2
    pack_tokens: int = 1024
    shuffle_advantages: bool = False  # the control run: advantages shuffled within the batch


@dataclass(frozen=True)
class TrainConfig:
    """The loop: `groups_per_step` questions a step, `group_size` tries each."""

    seed: int = 42
    steps: int = 16
    epochs: int = 1  # data order is reshuffled with seed + epoch; a run ends at `steps` or after `epochs`
    groups_per_step: int = 4
    group_size: int = 8
    max_infrastructure_share: float = 0.5  # a step with a larger share of failed episodes stops the run


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on fixed tasks, during training and by `--mode=eval`, which alone knows the last two keys."""

    every: int = 8  # steps; 0: never
    tasks: int = 32  # the first so many of the evaluation file, or of task_ids
    task_ids: str = ""  # a file of ids of evaluation tasks, one a line; empty: all, as they stand in their file
    tries: int = 4
    temperature: float = 1.0
    greedy: bool = True  # also one greedy try per task
    player: Literal["policy", "endpoint", "expert", "question"] = "policy"  # docs/evaluation.md says who they are
    adapter: str = ""  # the policy's: a PEFT folder, "base" (none) or "all" of the run's; empty: the run's newest


@dataclass(frozen=True)
class EndpointConfig:
    """A model behind an OpenAI-compatible API, who plays with eval.player = "endpoint" (docs/evaluation.md)."""

    url: str = ""  # up to what precedes /chat/completions: http://127.0.0.1:8000/v1
    model: str = ""  # the server's name of it
    timeout: float = 300.0  # seconds of one request


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised LoRA steps on recorded or scripted trajectories before RL (`--mode=sft` runs them alone)."""

    trajectories: int = 0  # 0: no warm start
    records: str = ""  # rollout records to imitate; empty: the scripted rule of the task
    demonstrations: str = ""  # curated set: recorded turns to play on this corpus and imitate, in the place of the rule
    epochs: int = 1
    rows_per_step: int = 8  # trajectories per update
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class CheckpointConfig:
    """Full states (LoRA, optimizer, streams, positions). Adapters are exported at each save and always kept."""

    every: int = 4
    keep_last: int = 2
    keep_best: int = 1


@dataclass(frozen=True)
class TelemetryConfig:
    """Writers beside `metrics.jsonl`, which is always written."""

    tensorboard: bool = True
    wandb_project: str = ""
    swanlab_project: str = ""
    plots: bool = True


AlarmName = Literal[
    "no signal",
    "all bad",
    "empty",
    "not finished",
    "broken finish",
    "truncation",
    "tool errors",
    "call format drift",
    "answer format drift",
    "duplicate calls",
    "entropy collapse",
    "entropy fall",
    "length collapse",
    "length blow-up",
    "log-prob gap",
    "KL blow-up",
    "no update",
    "lost episodes",
    "search engine",
    "curate anything",
    "data stands still",
]


@dataclass(frozen=True)
class AlarmsConfig:
    """Alarms of the training (docs/evaluation.md). They are always printed."""

    stop_on: tuple[AlarmName, ...] = ()  # one of these ends the run, with a checkpoint


@dataclass(frozen=True)
class Config:
    """One experiment."""

    name: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    task: TaskConfig = field(default_factory=CuratedConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    alarms: AlarmsConfig = field(default_factory=AlarmsConfig)
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
