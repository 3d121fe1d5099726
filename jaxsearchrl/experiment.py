"""Everything that a configuration names, loaded: weights, tokenizer, search index, tasks."""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsearchrl import hosts
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
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.learning.optimizer import Optimizer
from jaxsearchrl.models.architecture import check_context
from jaxsearchrl.models.decoder import Model, Weights, build_model, init_lora
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.mesh_choice import mesh_here
from jaxsearchrl.models.peft_adapter import adapter_of, lora_of, read_adapter, write_adapter
from jaxsearchrl.models.sharding import (
    check_cut,
    describe,
    local,
    lora_shardings,
    make_mesh,
    mesh_of,
    put,
    shardings,
    state_shardings,
)
from jaxsearchrl.sampling.engine import Engine
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.seeds import seed_of
from jaxsearchrl.tasks.environment import Environment
from jaxsearchrl.tasks.families import open_family
from jaxsearchrl.tasks.family import Family, Task
from jaxsearchrl.tasks.inputs import check_prompt, read_tasks
from jaxsearchrl.telemetry.progress import Progress

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage:
    """All that episodes need but a policy: a configuration (its demo paths resolved), chat format, family and tasks.

    searches: what an engine elsewhere answered; of a local index nothing is counted.
    """

    config: Config
    chat: ChatFormat
    tokenizer_fingerprint: str
    family: Family
    train_tasks: Sequence[Task]
    eval_tasks: Sequence[Task]
    searches: SearchCounters = field(default_factory=SearchCounters)

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Of all that was read and must not change within a run."""
        return {
            "tokenizer": self.tokenizer_fingerprint,
            "training tasks": _sha256("\n".join(map(repr, self.train_tasks))),
            "evaluation tasks": _sha256("\n".join(map(repr, self.eval_tasks))),
            **{name: _sha256(value) for name, value in self.family.fingerprints.items()},
        }

    def environment(self, task: Task, step: int = 0) -> Environment:
        """A new episode of a task, for a policy that has seen `step` updates."""
        return self.family.environment(task, self.chat.count_tokens, step)


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment(Stage):
    """With a model. vocab_size: ids from here on are never sampled, and have no share in the learner's softmax."""

    model: Model
    base: Weights
    base_fingerprint: str
    vocab_size: int

    @cached_property
    def fingerprints(self) -> dict[str, str]:
        """Those of the stage, and the base weights'."""
        return {"base": self.base_fingerprint, **super().fingerprints}

    def new_adapter(self) -> Weights:
        """An adapter that changes nothing yet, where the base is."""
        return self._laid_out(init_lora(self.model, seed_of(self.config.train.seed, "lora")))

    def first_adapter(self) -> Weights:
        """What training begins with: the adapter of `lora.start`, or a new one. Raises as `adapter_in`."""
        start = self.config.lora.start
        return self.adapter_in(start) if start else self.new_adapter()

    def adapter_in(self, folder: str | Path) -> Weights:
        """The adapter of a folder in PEFT's format, where the base is; of several processes the first reads it.

        Raises UserError for a folder that is no adapter of this model, and ConfigError for one of other settings.
        """
        if hosts.is_first():
            lora = self._read_adapter(folder)
        else:
            lora = {name: np.empty(shape, np.float32) for name, shape in self.model.lora_shapes.items()}
        return self._laid_out(hosts.arrays_of_first(lora))

    def _read_adapter(self, folder: str | Path) -> dict[str, np.ndarray]:
        adapter, found = read_adapter(folder, self.model.arch)
        wanted = self.model.lora
        for key, ours, theirs in (
            ("rank", wanted.rank, found.rank),
            ("alpha", wanted.alpha, found.alpha),
            ("modules", tuple(sorted(wanted.modules)), tuple(sorted(found.modules))),
        ):
            if ours != theirs:
                raise ConfigError(f"{folder}: its {key} is {theirs!r}, but lora.{key} = {ours!r}; set that to it")
        return lora_of(adapter)

    def _laid_out(self, lora: Mapping[str, Any]) -> Weights:
        mesh = mesh_of(self.base)
        return put(dict(lora), lora_shardings(self.model, mesh) if mesh else None)

    def new_engine(self, lora: Weights) -> Engine:
        """This process's sampler, compiled; `Engine.renew` gives it its random stream."""
        stop_ids, vocab_size = self.chat.stop_ids, self.vocab_size
        sampling = replace(self.config.sampling, slots=self.config.sampling.slots // hosts.count())
        return Engine(self.model, self.base, lora, sampling, stop_ids=stop_ids, vocab_size=vocab_size, seed=0)

    def new_state(self, optimizer: Optimizer, lora: Weights) -> Any:
        """The optimizer's state before the first update, where the adapter is."""
        if (mesh := mesh_of(lora)) is None:
            return optimizer.init(lora)
        state = jax.eval_shape(optimizer.init, lora)
        laid = state_shardings(state, lora_shardings(self.model, mesh), mesh)
        return jax.jit(optimizer.init, out_shardings=laid)(lora)

    def export_adapter(self, folder: Path, lora: Weights) -> None:
        """Writes the adapter in PEFT's format."""
        write_adapter(folder, self.model.arch, adapter_of(local(lora)), self.model.lora, self.config.model.path)


def load_stage(config: Config, progress: Progress) -> Stage:
    """Loads, announcing each phase. Raises UserError naming the file or key at fault."""
    config = resolve_demo(config)
    options = config.task
    searches = SearchCounters()
    check_prompt(options)  # a fault in the file shows now, not in the first episode
    with progress.phase("tasks and search index"):
        family = open_family(options, searches)
        train_tasks = _tasks(family, options, options.train_tasks)
        eval_tasks = _tasks(family, options, options.eval_tasks)
        if config.eval.task_ids:
            eval_tasks = chosen(eval_tasks, config.eval.task_ids, options.eval_tasks)
        eval_tasks = eval_tasks[: config.eval.tasks]
    tokenizer = load_tokenizer(config.model.tokenizer or config.model.path)
    stage = Stage(
        config=config,
        chat=chat_format(config.chat, tokenizer),
        tokenizer_fingerprint=_sha256(tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template)),
        family=family,
        train_tasks=train_tasks,
        eval_tasks=eval_tasks,
        searches=searches,
    )
    _check_prompts(stage)
    return stage


def load_experiment(config: Config, progress: Progress) -> Experiment:
    """The stage and the model; as `load_stage`."""
    stage = load_stage(config, progress)
    config, chat = stage.config, stage.chat
    with progress.phase("model"):
        checkpoint = open_checkpoint(config.model.path)
        arch = checkpoint.architecture
        check_context(arch, config.sampling.capacity)
        if chat.vocab_size > arch.vocab_size:
            raise ConfigError(
                f"the tokenizer of {config.model.tokenizer or config.model.path} has ids up to {chat.vocab_size - 1}, "
                f"but the model's embedding ends at {arch.vocab_size - 1}: give the model's own (model.tokenizer)"
            )
        dtype = jnp.dtype(config.model.weights_dtype)
        model = build_model(arch, config.lora, dtype, packed_experts=config.model.packed_experts)
        mesh = make_mesh(mesh_here(config, model))
        if mesh:
            check_cut(config, mesh)
            progress.note(describe(model, mesh, jax.device_count()))
        base = load_base(model, checkpoint, shardings(model, mesh) if mesh else None)
    return Experiment(
        **{part.name: getattr(stage, part.name) for part in fields(stage)},
        model=model,
        base=base,
        base_fingerprint=checkpoint.fingerprint,
        vocab_size=chat.vocab_size,
    )


def check_unchanged(now: Mapping[str, str], then: Mapping[str, str], folder: Path) -> None:
    """Raises UserError where what `now` has a fingerprint of is not what the run in `folder` started with."""
    for name, fingerprint in now.items():
        before = then.get(name, "unknown")
        if fingerprint != before:
            raise UserError(
                f"{folder}: the {name} changed since the run started (fingerprint {fingerprint[:12]}, was "
                f"{before[:12]}); restore what it was, or choose another --workdir"
            )


def chosen(tasks: Sequence[Task], path: str, tasks_path: str) -> list[Task]:
    """The tasks whose ids a file names, one a line, in its order. Raises UserError for an id that is no task's."""
    by_id = {task.id: task for task in tasks}
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    ids = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    for place, (number, task_id) in enumerate(ids):
        if task_id not in by_id:
            raise UserError(f"{path}:{number}: {tasks_path} has no task {task_id!r}; name its ids, one a line")
        if task_id in (earlier for _, earlier in ids[:place]):
            raise UserError(f"{path}:{number}: the task {task_id!r} is named twice; name each once")
    if not ids:
        raise UserError(f"{path}: names no task; write the ids of evaluation tasks, one a line")
    return [by_id[task_id] for _, task_id in ids]


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


def _check_prompts(stage: Stage) -> None:
    """Raises ConfigError for a task whose prompt leaves no room for a turn: it could never be played."""
    capacity, options = stage.config.sampling.capacity, stage.config.task
    documents = 0  # tokens that a prompt may have beside its question
    if isinstance(options, SearchR1Config | SearchToolsConfig) and options.play == "rag":
        documents = options.max_observation_tokens

    def tokens(task: Task) -> int:
        environment = stage.environment(task)
        return len(stage.chat.prompt_ids(environment.reset(), environment.tools))

    def size(task: Task) -> int:
        return len(unicodedata.normalize("NFC", task.query).encode("utf-8", "replace"))

    longest_first = sorted([*stage.train_tasks, *stage.eval_tasks], key=size, reverse=True)
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
