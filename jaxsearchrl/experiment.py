"""Everything that a configuration names, loaded: weights, tokenizer, search index, tasks."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    vocab_size: int
    index: LocalIndex
    train_tasks: Sequence[Task]
    eval_tasks: Sequence[Task]

    @property
    def tasks_fingerprint(self) -> str:
        """Of the training tasks, in their order."""
        return hashlib.sha256("\n".join(map(repr, self.train_tasks)).encode("utf-8", "replace")).hexdigest()

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
    with progress.phase("search index"):
        index = open_or_build(config.task.corpus, config.task.index_dir, snippet_chars=config.task.snippet_chars)
    train_tasks = load_tasks(config.task.train_tasks) if config.task.train_tasks else []
    eval_tasks = load_tasks(config.task.eval_tasks)[: config.eval.tasks] if config.task.eval_tasks else []
    check_gold([*train_tasks, *eval_tasks], index)
    with progress.phase("model"):
        checkpoint = open_checkpoint(config.model.path)
        arch = checkpoint.architecture
        if config.sampling.capacity > arch.max_positions:
            raise ConfigError(
                f"sampling.capacity = {config.sampling.capacity}: "
                f"the model's context has {arch.max_positions} positions"
            )
        model = build_model(arch, config.lora, jnp.dtype(config.model.weights_dtype))
        expected = {spec.hf_name: spec.shape for spec in model.specs.values()}
        check_names(checkpoint, expected, config.model.path)
        base = load_base(model, checkpoint)
    tokenizer = load_tokenizer(config.model.tokenizer or config.model.path)
    chat = ChatML(tokenizer, terse_tools=config.task.compact_results)
    return Experiment(
        config=config,
        model=model,
        base=base,
        base_fingerprint=checkpoint.fingerprint,
        chat=chat,
        vocab_size=min(chat.vocab_size, arch.vocab_size),
        index=index,
        train_tasks=train_tasks,
        eval_tasks=eval_tasks,
    )


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
