"""Everything that a configuration names, loaded: weights, tokenizer, search index, tasks."""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxsearchrl.chat.chatml import ChatML
from jaxsearchrl.chat.format import ChatFormat
from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import Config
from jaxsearchrl.data.demo import prepare_demo
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.decoder import Model, Weights, build_model, load_base
from jaxsearchrl.models.files import check_names, open_checkpoint
from jaxsearchrl.models.peft_adapter import write_adapter
from jaxsearchrl.search.index import LocalIndex, open_or_build
from jaxsearchrl.tasks.curated.data import Task, check_gold, load_tasks
from jaxsearchrl.tasks.curated.environment import CuratedEnvironment
from jaxsearchrl.tasks.curated.prompts import system_prompt
from jaxsearchrl.telemetry.progress import Progress


@dataclass(frozen=True, eq=False)
class Experiment:
    """A configuration (its demo paths resolved) and what it names.

    vocab_size: ids from here on are never sampled, and have no share in the learner's softmax.
    """

    config: Config
    model: Model
    base: Weights
    base_fingerprint: str
    chat: ChatFormat
    tokenizer_fingerprint: str
    vocab_size: int
    index: LocalIndex
    train_tasks: Sequence[Task]
    eval_tasks: Sequence[Task]

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of all that was read and must not change within a run."""
        return {
            "base": self.base_fingerprint,
            "tokenizer": self.tokenizer_fingerprint,
            "corpus": self.index.fingerprint,
            "training tasks": _sha256("\n".join(map(repr, self.train_tasks))),
            "evaluation tasks": _sha256("\n".join(map(repr, self.eval_tasks))),
            "prompt": _sha256(system_prompt(self.config.task)),
        }

    def environment(self, task: Task) -> CuratedEnvironment:
        """A new episode of a task."""
        return CuratedEnvironment(task, self.index, self.index, self.config.task, self.chat.count_tokens)

    def export_adapter(self, folder: Path, lora: Weights) -> None:
        """Writes the adapter in PEFT's format."""
        linears = sorted({name.removesuffix(".lora_a") for name in lora if name.endswith(".lora_a")})
        pairs = {name: (np.asarray(lora[f"{name}.lora_a"]), np.asarray(lora[f"{name}.lora_b"])) for name in linears}
        write_adapter(folder, self.model.arch, pairs, self.config.lora, self.config.model.path)


def load_experiment(config: Config, progress: Progress) -> Experiment:
    """Loads, announcing each phase. Raises UserError naming the file or key at fault."""
    config = _resolve_demo(config)
    system_prompt(config.task)  # a fault in the file shows now, not in the first episode
    train_tasks = load_tasks(config.task.train_tasks) if config.task.train_tasks else []
    eval_tasks = load_tasks(config.task.eval_tasks)[: config.eval.tasks] if config.task.eval_tasks else []
    with progress.phase("search index"):
        index = open_or_build(config.task.corpus, config.task.index_dir, snippet_chars=config.task.snippet_chars)
    check_gold(train_tasks, index, config.task.train_tasks)
    check_gold(eval_tasks, index, config.task.eval_tasks)
    with progress.phase("model"):
        checkpoint = open_checkpoint(config.model.path)
        arch = checkpoint.architecture
        if config.sampling.capacity > arch.max_positions:
            raise ConfigError(
                f"sampling.capacity = {config.sampling.capacity}: "
                f"the model's context has {arch.max_positions} positions"
            )
        tokenizer = load_tokenizer(config.model.tokenizer or config.model.path)
        chat = ChatML(tokenizer, terse_tools=config.task.compact_results)
        if chat.vocab_size > arch.vocab_size:
            raise ConfigError(
                f"the tokenizer of {config.model.tokenizer or config.model.path} has ids up to {chat.vocab_size - 1}, "
                f"but the model's embedding ends at {arch.vocab_size - 1}: give the model's own (model.tokenizer)"
            )
        model = build_model(arch, config.lora, jnp.dtype(config.model.weights_dtype))
        expected = {spec.hf_name: spec.shape for spec in model.specs.values()}
        check_names(checkpoint, expected, config.model.path)
        base = load_base(model, checkpoint)
    experiment = Experiment(
        config=config,
        model=model,
        base=base,
        base_fingerprint=checkpoint.fingerprint,
        chat=chat,
        tokenizer_fingerprint=_sha256(tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)),
        vocab_size=chat.vocab_size,
        index=index,
        train_tasks=train_tasks,
        eval_tasks=eval_tasks,
    )
    _check_prompts(experiment)
    return experiment


def _check_prompts(experiment: Experiment) -> None:
    """Raises ConfigError for a task whose prompt leaves no room for a turn: it could never be played."""
    capacity = experiment.config.sampling.capacity

    def tokens(task: Task) -> int:
        environment = experiment.environment(task)
        return len(experiment.chat.prompt_ids(environment.reset(), environment.tools))

    def size(task: Task) -> int:
        return len(unicodedata.normalize("NFC", task.query).encode("utf-8", "replace"))

    longest_first = sorted([*experiment.train_tasks, *experiment.eval_tasks], key=size, reverse=True)
    least = tokens(longest_first[-1]) if longest_first else 0
    for task in longest_first:
        if least + size(task) < capacity:  # a token has at least one byte: from here on all fit
            return
        if tokens(task) >= capacity:
            raise ConfigError(
                f'task "{task.id}": its prompt has {tokens(task)} tokens, which leaves no room for a turn in '
                f"sampling.capacity = {capacity}; raise that, or shorten the query"
            )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _resolve_demo(config: Config) -> Config:
    """Replaces each "demo" path by the file it stands for, fetched if need be."""
    task, model = config.task, config.model
    if "demo" not in (model.path, task.corpus, task.train_tasks, task.eval_tasks):
        return config
    files = prepare_demo()
    named = {"corpus": files.corpus, "train_tasks": files.train_tasks, "eval_tasks": files.eval_tasks}
    paths = {key: str(path) for key, path in named.items() if getattr(task, key) == "demo"}
    if model.path == "demo":
        model = replace(model, path=str(files.model))
    return replace(config, model=model, task=replace(task, **paths))
