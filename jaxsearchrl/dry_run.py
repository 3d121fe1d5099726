"""Any experiment made tiny: a random model of the same family, a generated corpus, two steps.

It exercises every part of a run within a minute on a laptop, before a real model or corpus is at hand.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jaxsearchrl.chat import tool_json, tool_xml
from jaxsearchrl.config import (
    ChatConfig,
    Config,
    CuratedConfig,
    GSM8KConfig,
    MeshConfig,
    RetrieverConfig,
    SearchR1Config,
    SearchToolsConfig,
    TaskConfig,
)
from jaxsearchrl.messages import ToolCall
from jaxsearchrl.models.architecture import Family
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.tiny import write_tiny_checkpoint

CAPACITY = 2816  # tokens of an episode: the prompt with its tools takes up to 1,400, the rest is for three turns
TRAIN_TASKS, EVAL_TASKS = 8, 4
VOCABULARY = 4096
TURNS = 100  # of a kind, that are one token each
# Control tokens; the second begins a message, the last ends a turn.
CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HARMONY_TOKENS = (
    "<|endoftext|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
)

WriteCall = Callable[[ToolCall], str]

_SYLLABLES = (
    "ar",
    "bel",
    "cor",
    "dun",
    "el",
    "far",
    "gal",
    "hol",
    "is",
    "kes",
    "lun",
    "mor",
    "nas",
    "or",
    "pel",
    "ras",
)
_CRAFTS = ("glass", "rope", "cheese", "clocks", "paper", "salt", "barrels", "lace", "bells", "tiles")


def dry_run_config(config: Config, folder: str | Path) -> Config:
    """`config` with a tiny model, corpus and tasks (all written into `folder`), small sizes, no mesh; the rest stays.

    Remote metric writers and retrievers are switched off, and a warm start imitates the task's rule: recorded ids
    belong to another tokenizer. Experts are floats. In harmony there always is a warm start, for a random model never
    says a whole call of that. The same folder and config give the same files. Raises UserError when model.path cannot
    be read.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    harmony = config.chat.format == "harmony"
    write_call = tool_xml.write_call if config.chat.format == "qwen_xml" else tool_json.write_call
    paths, turns = _sample(folder, config.task, write_call)
    model = folder / "model"
    words = [path for key, path in paths.items() if key in ("train_tasks", "corpus")]
    if harmony:
        vocab_size, end = _write_tokenizer(model, words, (), HARMONY_TOKENS)
    else:
        vocab_size, end = _write_tokenizer(model, words, [_behind_prompt(turn, config.chat) for turn in turns])
    write_tiny_checkpoint(
        model, _family(config.model.path), vocab_size=vocab_size, max_positions=CAPACITY, eos_ids=(end,)
    )
    return replace(
        config,
        lora=replace(config.lora, start=""),
        model=replace(config.model, path=str(model), tokenizer="", packed_experts=False),
        task=replace(config.task, **paths, **_small(config.task), **_local(config.task)),
        sampling=replace(
            config.sampling,
            slots=4,
            capacity=CAPACITY,
            max_turn_tokens=min(config.sampling.max_turn_tokens, 32),
            extend_chunks=min(config.sampling.extend_chunks, 4),
            chunk_tokens=min(config.sampling.chunk_tokens, 64),
            read_block=256,
        ),
        learning=replace(
            config.learning,
            pack_rows=1,
            pack_tokens=CAPACITY,
            warmup_steps=min(config.learning.warmup_steps, 1),
        ),
        # Four tries: of a random model's two are often alike, and then no update is made.
        train=replace(config.train, steps=2, groups_per_step=2, group_size=4),
        eval=replace(
            config.eval, every=min(config.eval.every, 1), tasks=2, task_ids="", tries=min(config.eval.tries, 2)
        ),
        warm_start=replace(
            config.warm_start,
            trajectories=max(2 * harmony, min(config.warm_start.trajectories, 4)),
            records="",
            demonstrations="",
            epochs=1,
            rows_per_step=min(config.warm_start.rows_per_step, 2),
        ),
        mesh=MeshConfig(),  # a row and four slots fill no mesh
        checkpoint=replace(config.checkpoint, every=1),
        telemetry=replace(config.telemetry, wandb_project="", swanlab_project=""),
    )


def _small(task: TaskConfig) -> dict[str, int]:
    sizes = {"max_turns": 3, "max_searches": 2, "max_observation_tokens": 256}
    return {name: min(getattr(task, name), size) for name, size in sizes.items() if hasattr(task, name)}


def _local(task: TaskConfig) -> dict[str, RetrieverConfig]:
    """An engine elsewhere knows nothing of the invented towns."""
    return {"retriever": RetrieverConfig()} if isinstance(task, SearchR1Config | SearchToolsConfig) else {}


def _family(path: str) -> Family:
    """The family of the experiment's model; llama (the demo's) where there is no model yet."""
    if path in ("", "demo") or not Path(path).exists():
        print("dry run: a tiny random llama in the place of the model", flush=True)
        return "llama"
    return open_checkpoint(path).architecture.family


def _behind_prompt(turn: str, chat: ChatConfig) -> str:
    """The turn as it follows a prompt that may have opened its reasoning."""
    opened = chat.format == "qwen_xml" and chat.thinking
    if not opened:
        return turn
    return turn.removeprefix("<think>") if turn.startswith("<think>") else f"</think>{turn}"


def _sample(folder: Path, task: TaskConfig, write_call: WriteCall) -> tuple[dict[str, str], list[str]]:
    """Writes a corpus of invented towns, and tasks that ask about some; no town is in both task files.

    Returns the task's paths, and turns that a policy may write: some are right, some are not.
    """
    generator = random.Random(0)
    pairs = [(a, b) for a in _SYLLABLES for b in _SYLLABLES if a != b]
    names = [f"{a}{b}".capitalize() for a, b in generator.sample(pairs, 3 * (TRAIN_TASKS + EVAL_TASKS))]
    documents, facts = [], []
    for number, name in enumerate(names):
        craft, year = generator.choice(_CRAFTS), generator.randrange(1100, 1900)
        text = f"{name} is a town by the river. It was founded in {year}. Its people are known for making {craft}."
        documents.append({"id": f"t{number}", "title": name, "text": text})
        asked = generator.choice(((f"When was {name} founded?", str(year)), (f"What is made in {name}?", craft)))
        facts.append((*asked, f"t{number}"))
    match task:
        case CuratedConfig():
            rows, turns = _joined_tasks(facts, generator), _curated_turns(documents, write_call)
        case GSM8KConfig():
            rows, turns = _sums(generator), [f"<think>So.</think><answer> {n} </answer>" for n in range(4, 20)]
        case _:
            rows = [
                {
                    "id": f"q{number}",
                    "question": question,
                    "answers": [answer],
                    "data_source": ("towns", "places")[number % 2],
                }
                for number, (question, answer, _) in enumerate(facts[: TRAIN_TASKS + EVAL_TASKS])
            ]
            tags = isinstance(task, SearchR1Config)
            turns = _question_turns(names, sorted({answer for _, answer, _ in facts}), tags, write_call)
    paths = {
        "train_tasks": _write_jsonl(folder / "train_tasks.jsonl", rows[:TRAIN_TASKS]),
        "eval_tasks": _write_jsonl(folder / "eval_tasks.jsonl", rows[TRAIN_TASKS:]),
    }
    if not isinstance(task, GSM8KConfig):
        paths |= {"corpus": _write_jsonl(folder / "corpus.jsonl", documents), "index_dir": folder / "index"}
    return {key: str(path) for key, path in paths.items()}, turns


def _joined_tasks(facts: Sequence[tuple[str, str, str]], generator: random.Random) -> list[dict]:
    rows = []
    for number in range(TRAIN_TASKS + EVAL_TASKS):
        chosen = facts[3 * number : 3 * number + generator.choice((2, 3))]
        rows.append(
            {
                "id": f"q{number}",
                "query": "\n".join(question for question, _, _ in chosen),
                "facts": [{"fact": question, "chunk_ids": [gold]} for question, _, gold in chosen],
            }
        )
    return rows


def _sums(generator: random.Random) -> list[dict]:
    rows = []
    for number in range(TRAIN_TASKS + EVAL_TASKS):
        a, b = generator.randrange(2, 10), generator.randrange(2, 10)
        question = f"A baker has {a} loaves and bakes {b} more. How many loaves are there?"
        rows.append({"id": f"q{number}", "question": question, "answers": [str(a + b)]})
    return rows


def _write_jsonl(path: Path, rows: list[dict]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    # An unchanged file keeps its time stamp, so that a resumed dry run finds its index fresh.
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def _curated_turns(documents: Sequence[Mapping[str, str]], write_call: WriteCall) -> list[str]:
    """Calls that search for a few towns, curate a handful of documents, and finish."""
    titles, ids = ([document[key] for document in documents] for key in ("title", "id"))
    generator = random.Random(0)
    calls = [ToolCall("finish", {})]
    for _ in range(TURNS):
        calls.append(ToolCall("bm25_search", {"query": " ".join([*generator.sample(titles, 3), "town"])}))
        calls.append(ToolCall("curate", {"document_ids": generator.sample(ids, 10)}))
    return [write_call(call) for call in calls]


def _question_turns(names: Sequence[str], answers: Sequence[str], tags: bool, write_call: WriteCall) -> list[str]:
    """A search for each town, and each answer, by tags or by calls."""
    if tags:
        searches = [f"<think>Hm.</think><search> {name} </search>" for name in names]
        return [*searches, *(f"<think>So.</think><answer> {answer} </answer>" for answer in answers)]
    searches = [write_call(ToolCall("search", {"query": name})) for name in names]
    return [*searches, *(f"Answer: {answer}" for answer in answers)]


def _write_tokenizer(
    folder: Path, words: Sequence[str], turns: Sequence[str], control: Sequence[str] = CHATML_TOKENS
) -> tuple[int, int]:
    """A byte-level BPE of the files `words` and of the words of prompts and tools, as a Hugging Face folder.

    turns: texts that are one token each. So a random model says them by chance, rewards differ, and there is something
    to learn. Returns the size and the id that ends a turn.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(control),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    package = Path(__file__).parent
    texts = sorted(path for path in package.glob("tasks/**/*") if path.suffix in (".py", ".txt"))
    tokenizer.train([*words, *map(str, texts)], trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in turns])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": control[1],
        "eos_token": control[-1],
        "pad_token": control[-1],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return tokenizer.get_vocab_size(), tokenizer.get_vocab()[control[-1]]
