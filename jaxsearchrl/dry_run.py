"""Any experiment made tiny: a random model of the same family, a generated corpus, two steps.

It exercises every part of a run within a minute on a laptop, before a real model or corpus is at hand.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jaxsearchrl.chat.tool_json import write_call
from jaxsearchrl.config import Config
from jaxsearchrl.messages import ToolCall
from jaxsearchrl.models.architecture import Family
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.tiny import write_tiny_checkpoint

CAPACITY = 2560  # tokens of an episode: the prompt with its tools takes 1,100, the rest is for three turns
TRAIN_TASKS, EVAL_TASKS = 8, 4
VOCABULARY = 4096
CALLS = 100  # of a kind, that are one token each

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
    """`config` with a tiny model, corpus and tasks (all written into `folder`) and small sizes; the rest stays.

    Remote metric writers are switched off, and a warm start imitates the task's rule: recorded ids belong to another
    tokenizer. The same folder and config give the same files. Raises UserError when model.path cannot be read.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    corpus, train_tasks, eval_tasks = _write_sample(folder)
    model = folder / "model"
    vocab_size, end = _write_tokenizer(model, corpus, _calls(corpus))
    write_tiny_checkpoint(
        model, _family(config.model.path), vocab_size=vocab_size, max_positions=CAPACITY, eos_ids=(end,)
    )
    return replace(
        config,
        model=replace(config.model, path=str(model), tokenizer=""),
        task=replace(
            config.task,
            corpus=str(corpus),
            train_tasks=str(train_tasks),
            eval_tasks=str(eval_tasks),
            index_dir=str(folder / "index"),
            max_turns=min(config.task.max_turns, 3),
            max_observation_tokens=min(config.task.max_observation_tokens, 256),
        ),
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
        train=replace(config.train, steps=2, groups_per_step=2, group_size=2),
        eval=replace(config.eval, every=min(config.eval.every, 1), tasks=2, tries=min(config.eval.tries, 2)),
        warm_start=replace(
            config.warm_start,
            trajectories=min(config.warm_start.trajectories, 4),
            records="",
            epochs=1,
            rows_per_step=min(config.warm_start.rows_per_step, 2),
        ),
        checkpoint=replace(config.checkpoint, every=1),
        telemetry=replace(config.telemetry, wandb_project="", swanlab_project=""),
    )


def _family(path: str) -> Family:
    """The family of the experiment's model; llama (the demo's) where there is no model yet."""
    if path in ("", "demo") or not Path(path).exists():
        print("dry run: a tiny random llama in the place of the model", flush=True)
        return "llama"
    return open_checkpoint(path).architecture.family


def _write_sample(folder: Path) -> tuple[Path, Path, Path]:
    """A corpus of invented towns, and tasks that ask about two or three of them; no town is in both task files."""
    generator = random.Random(0)
    pairs = [(a, b) for a in _SYLLABLES for b in _SYLLABLES if a != b]
    names = [f"{a}{b}".capitalize() for a, b in generator.sample(pairs, 3 * (TRAIN_TASKS + EVAL_TASKS))]
    documents, questions = [], []
    for number, name in enumerate(names):
        craft, year = generator.choice(_CRAFTS), generator.randrange(1100, 1900)
        text = f"{name} is a town by the river. It was founded in {year}. Its people are known for making {craft}."
        documents.append({"id": f"t{number}", "title": name, "text": text})
        asked = generator.choice((f"When was {name} founded?", f"What is made in {name}?"))
        questions.append({"fact": asked, "chunk_ids": [f"t{number}"]})
    tasks = []
    for number in range(TRAIN_TASKS + EVAL_TASKS):
        facts = questions[3 * number : 3 * number + generator.choice((2, 3))]
        tasks.append({"id": f"q{number}", "query": "\n".join(fact["fact"] for fact in facts), "facts": facts})
    return (
        _write_jsonl(folder / "corpus.jsonl", documents),
        _write_jsonl(folder / "train_tasks.jsonl", tasks[:TRAIN_TASKS]),
        _write_jsonl(folder / "eval_tasks.jsonl", tasks[TRAIN_TASKS:]),
    )


def _write_jsonl(path: Path, rows: list[dict]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    # An unchanged file keeps its time stamp, so that a resumed dry run finds its index fresh.
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
    return path


def _calls(corpus: Path) -> list[str]:
    """Calls that search for a few towns, curate a handful of documents, and finish.

    As tokens of their own a random model writes them by chance, so that rewards differ and there is something to learn.
    """
    documents = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    titles, ids = ([document[key] for document in documents] for key in ("title", "id"))
    generator = random.Random(0)
    calls = [ToolCall("finish", {})]
    for _ in range(CALLS):
        calls.append(ToolCall("bm25_search", {"query": " ".join([*generator.sample(titles, 3), "town"])}))
        calls.append(ToolCall("curate", {"document_ids": generator.sample(ids, 10)}))
    return [write_call(call) for call in calls]


def _write_tokenizer(folder: Path, corpus: Path, whole: Sequence[str]) -> tuple[int, int]:
    """A byte-level BPE of the corpus and of the words of prompts and tools, as a Hugging Face folder.

    whole: texts that are one token each. Returns the size and the id that ends a turn.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    package = Path(__file__).parent
    words = sorted(path for path in package.glob("tasks/**/*") if path.suffix in (".py", ".txt"))
    tokenizer.train([str(path) for path in (corpus, *words)], trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in whole])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return tokenizer.get_vocab_size(), tokenizer.get_vocab()["<|im_end|>"]
