"""Everything that a configuration names, loaded: weights, tokenizer, search index, tasks."""

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp

from jaxsearchrl.chat.chatml import ChatML
from jaxsearchrl.chat.format import ChatFormat
from jaxsearchrl.chat.harmony import Harmony
from jaxsearchrl.chat.search_r1 import SearchR1Tags
from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import (
    ChatConfig,
    Config,
    CuratedConfig,
    GSM8KConfig,
    SearchR1Config,
    SearchToolsConfig,
    TaskConfig,
)
from jaxsearchrl.config_tree import leaf_values, with_values
from jaxsearchrl.data.demo import prepare_demo
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import check_context
from jaxsearchrl.models.decoder import Model, Weights, build_model, init_lora
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.peft_adapter import adapter_of, lora_of, read_adapter, write_adapter
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.seeds import seed_of
from jaxsearchrl.tasks.environment import Environment
from jaxsearchrl.tasks.families import open_family
from jaxsearchrl.tasks.family import Family, Task
from jaxsearchrl.tasks.inputs import check_prompt, read_tasks
from jaxsearchrl.telemetry.progress import Progress

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, eq=False)
class Experiment:
    """A configuration (its demo paths resolved) and what it names.

    vocab_size: ids from here on are never sampled, and have no share in the learner's softmax.
    searches: what an engine elsewhere answered; of a local index nothing is counted.
    """

    config: Config
    model: Model
    base: Weights
    base_fingerprint: str
    chat: ChatFormat
    tokenizer_fingerprint: str
    vocab_size: int
    family: Family
    train_tasks: Sequence[Task]
    eval_tasks: Sequence[Task]
    searches: SearchCounters = field(default_factory=SearchCounters)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of all that was read and must not change within a run."""
        return {
            "base": self.base_fingerprint,
            "tokenizer": self.tokenizer_fingerprint,
            "training tasks": _sha256("\n".join(map(repr, self.train_tasks))),
            "evaluation tasks": _sha256("\n".join(map(repr, self.eval_tasks))),
            **{name: _sha256(value) for name, value in self.family.fingerprints.items()},
        }

    def environment(self, task: Task, step: int = 0) -> Environment:
        """A new episode of a task, for a policy that has seen `step` updates."""
        return self.family.environment(task, self.chat.count_tokens, step)

    def first_adapter(self) -> Weights:
        """What training begins with: a new adapter, or that of `lora.start`.

        Raises UserError for a folder that is no adapter of this model, and ConfigError for one of other settings.
        """
        wanted = self.model.lora
        if not wanted.start:
            return init_lora(self.model, seed_of(self.config.train.seed, "lora"))
        adapter, found = read_adapter(wanted.start, self.model.arch)
        for key, ours, theirs in (
            ("rank", wanted.rank, found.rank),
            ("alpha", wanted.alpha, found.alpha),
            ("modules", tuple(sorted(wanted.modules)), tuple(sorted(found.modules))),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"lora.{key} = {ours!r}, but the adapter of lora.start = {wanted.start!r} has {theirs!r}"
                )
        return {name: jnp.asarray(value) for name, value in lora_of(adapter).items()}

    def export_adapter(self, folder: Path, lora: Weights) -> None:
        """Writes the adapter in PEFT's format."""
        write_adapter(folder, self.model.arch, adapter_of(lora), self.model.lora, self.config.model.path)


def load_experiment(config: Config, progress: Progress) -> Experiment:
    """Loads, announcing each phase. Raises UserError naming the file or key at fault."""
    config = resolve_demo(config)
    options = config.task
    searches = SearchCounters()
    check_prompt(options)  # a fault in the file shows now, not in the first episode
    with progress.phase("tasks and search index"):
        family = open_family(options, searches)
        train_tasks = _tasks(family, options, options.train_tasks)
        eval_tasks = _tasks(family, options, options.eval_tasks)[: config.eval.tasks]
    with progress.phase("model"):
        checkpoint = open_checkpoint(config.model.path)
        arch = checkpoint.architecture
        check_context(arch, config.sampling.capacity)
        tokenizer = load_tokenizer(config.model.tokenizer or config.model.path)
        chat = chat_format(config.chat, tokenizer)
        if chat.vocab_size > arch.vocab_size:
            raise ConfigError(
                f"the tokenizer of {config.model.tokenizer or config.model.path} has ids up to {chat.vocab_size - 1}, "
                f"but the model's embedding ends at {arch.vocab_size - 1}: give the model's own (model.tokenizer)"
            )
        dtype = jnp.dtype(config.model.weights_dtype)
        model = build_model(arch, config.lora, dtype, packed_experts=config.model.packed_experts)
        base = load_base(model, checkpoint)
    experiment = Experiment(
        config=config,
        model=model,
        base=base,
        base_fingerprint=checkpoint.fingerprint,
        chat=chat,
        tokenizer_fingerprint=_sha256(tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)),
        vocab_size=chat.vocab_size,
        family=family,
        train_tasks=train_tasks,
        eval_tasks=eval_tasks,
        searches=searches,
    )
    _check_prompts(experiment)
    return experiment


def _tasks(family: Family, options: TaskConfig, path: str) -> Sequence[Task]:
    tasks = read_tasks(options, path) if path else []
    family.check(tasks, path)
    return tasks


def chat_format(config: ChatConfig, tokenizer: "PreTrainedTokenizerFast") -> ChatFormat:
    """The format that a configuration names.

    Raises UserError for a tokenizer without its control tokens, and ConfigError for one whose template has other calls.
    """
    template = str(tokenizer.chat_template or "")
    if "<tool_call>" in template:
        own, calls = ("qwen_xml", "as tags") if "<function=" in template else ("chatml", "as JSON")
        if {config.format, own} == {"chatml", "qwen_xml"}:
            raise ConfigError(
                f"chat.format = {config.format!r}: in the tokenizer's own chat template calls are written {calls}; "
                f"set it to {own!r}"
            )
    match config.format:
        case "chatml":
            return ChatML(tokenizer, terse_tools=config.terse_tools, thinking=config.thinking)
        case "search_r1":
            return SearchR1Tags(tokenizer)
        case "qwen_xml":
            return ChatML(tokenizer, calls="xml", thinking=config.thinking)
        case "harmony":
            return Harmony(tokenizer, date=config.date, reasoning=config.reasoning, header=config.header)


def _check_prompts(experiment: Experiment) -> None:
    """Raises ConfigError for a task whose prompt leaves no room for a turn: it could never be played."""
    capacity, options = experiment.config.sampling.capacity, experiment.config.task
    documents = 0  # tokens that a prompt may have beside its question
    if isinstance(options, SearchR1Config | SearchToolsConfig) and options.play == "rag":
        documents = options.max_observation_tokens

    def tokens(task: Task) -> int:
        environment = experiment.environment(task)
        return len(experiment.chat.prompt_ids(environment.reset(), environment.tools))

    def size(task: Task) -> int:
        return len(unicodedata.normalize("NFC", task.query).encode("utf-8", "replace"))

    longest_first = sorted([*experiment.train_tasks, *experiment.eval_tasks], key=size, reverse=True)
    least = tokens(longest_first[-1]) if longest_first else 0
    for task in longest_first:
        if least + size(task) + documents < capacity:  # a token has at least one byte: from here on all fit
            return
        if tokens(task) >= capacity:
            raise ConfigError(
                f'task "{task.id}": its prompt has {tokens(task)} tokens, which leaves no room for a turn in '
                f"sampling.capacity = {capacity}; raise that, or shorten the query"
            )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def resolve_demo(config: Config) -> Config:
    """Replaces each "demo" path by the file it stands for, fetched if need be."""
    values = leaf_values(config)
    keys = ("model.path", "task.corpus", "task.train_tasks", "task.eval_tasks")
    wanted = [key for key in keys if values.get(key) == "demo"]
    if not wanted:
        return config
    files = prepare_demo()
    match config.task:
        case CuratedConfig():
            tasks = files.tasks
        case GSM8KConfig():
            tasks = files.sums
        case _:
            tasks = files.questions
    paths = zip(keys, (files.model, files.corpus, tasks["train"], tasks["eval"]), strict=True)
    return with_values(config, {key: str(path) for key, path in paths if key in wanted})
