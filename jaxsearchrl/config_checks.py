"""Whether a configuration can work: types, ranges, combinations and files, checked before anything loads.

All faults are reported at once, each naming its key and what to write instead.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from jaxsearchrl.config import (
    WRAPPING_TOKENS,
    ChatConfig,
    Config,
    CuratedConfig,
    GSM8KConfig,
    RetrieverConfig,
    SearchR1Config,
    SearchToolsConfig,
    TrainConfig,
)
from jaxsearchrl.config_mesh import uneven
from jaxsearchrl.config_tree import diff, leaf_types, leaf_values, type_errors
from jaxsearchrl.errors import ConfigError

# What a resumed run may change: how long it runs, on which devices, what it reports and keeps. Its evaluations must
# stay comparable.
_RUN_LENGTH = ("train.steps", "train.epochs")  # but not when the learning rate decays towards the end
# Where an engine answers, too: its host may be another one, what it searches by its path is held together elsewhere.
_REACHING = tuple(f"task.retriever.{name}" for name in ("url", "timeout", "tries", "cache_file"))
_MAY_CHANGE = (*_RUN_LENGTH, "eval.every", "checkpoint.", "telemetry.", "alarms.", "mesh.", *_REACHING)
# What an evaluation of an adapter must share with the run that trained it.
_ADAPTER = ("model.", "lora.", "chat.")

# The formats that read a key of the chat section.
_CHAT_KEYS = {
    "terse_tools": ("chatml",),
    "thinking": ("chatml", "qwen_xml"),
    "header": ("harmony",),
    "date": ("harmony",),
    "reasoning": ("harmony",),
}

_WARM_START_FILES = ("warm_start.records", "warm_start.demonstrations")

Number = int | float
_LIMITS: tuple[tuple[str, Callable[[Number], bool], str], ...] = (
    ("at least 2 (an advantage is a difference within a group)", lambda x: x >= 2, "train.group_size"),
    (
        "at least 1",
        lambda x: x >= 1,
        "lora.rank task.max_turns task.max_tool_calls task.search_default_k task.search_max_k task.snippet_chars "
        "task.read_max_chars task.max_observation_tokens task.max_curated sampling.slots sampling.capacity "
        "sampling.max_turn_tokens sampling.extend_chunks sampling.chunk_tokens sampling.decode_steps "
        "sampling.read_block sampling.tool_threads learning.pack_rows learning.pack_tokens train.steps train.epochs "
        "train.groups_per_step eval.tasks eval.tries warm_start.epochs warm_start.rows_per_step "
        "checkpoint.every checkpoint.keep_last task.search_k task.max_searches task.document_chars "
        "learning.updates_per_step task.retriever.tries mesh.fsdp mesh.tensor mesh.expert",
    ),
    (
        "above 0",
        lambda x: x > 0,
        "lora.alpha learning.loss_constant learning.eps learning.clip_high warm_start.learning_rate "
        "task.retriever.timeout endpoint.timeout",
    ),
    ("at least 0.001", lambda x: x >= 0.001, "sampling.temperature"),
    ("0 (greedy) or at least 0.001", lambda x: x == 0 or x >= 0.001, "eval.temperature"),
    (
        "0 or above",
        lambda x: x >= 0,
        "learning.learning_rate learning.warmup_steps learning.weight_decay learning.max_grad_norm eval.every "
        "warm_start.trajectories checkpoint.keep_best task.format_steps learning.kl_weight task.fan_out_queries "
        "mesh.data",
    ),
    (
        "0 or above (it is subtracted from the reward)",
        lambda x: x >= 0,
        "task.format_penalty task.invalid_curation_penalty task.unfinished_penalty task.document_cost",
    ),
    ("0 or above (it is added to the reward)", lambda x: x >= 0, "task.discovery_bonus task.format_weight"),
    ("above 0 and at most 1000 (there the score is recall alone)", lambda x: 0 < x <= 1000, "task.beta"),
    ("between -1 and 0 (it is the reward itself)", lambda x: -1 <= x <= 0, "task.empty_penalty task.invalid_reward"),
    ("at least 0 and below 1", lambda x: 0 <= x < 1, "learning.b1 learning.b2"),
    ("above 0 and below 1 (ratios below 1 minus it do not count)", lambda x: 0 < x < 1, "learning.clip_low"),
    ("at least 1 (it is a ratio)", lambda x: x >= 1, "learning.ratio_cap"),
    ("between 0 and 1", lambda x: 0 <= x <= 1, "train.max_infrastructure_share"),
    ("between 0 and 2147483647", lambda x: 0 <= x < 2**31, "train.seed"),
)
LIMITED_KEYS = frozenset(key for _, _, keys in _LIMITS for key in keys.split())


def validate(config: Config, *, check_files: bool = True, required: Sequence[str] = ()) -> None:
    """Checks everything that can be known before anything loads.

    required: keys of files that this run cannot do without. check_files: whether the files must exist.
    Raises ConfigError that lists every fault, by key.
    """
    errors = type_errors(config) or [*_texts(config)]
    if not errors:
        errors = [*_limits(config), *_combinations(config), *_required(config, required)]
        if check_files:
            errors += _files(config)
    if errors:
        count = "1 fault" if len(errors) == 1 else f"{len(errors)} faults"
        raise ConfigError("\n  ".join([f"the configuration has {count}:", *errors]))


def total_steps(train: TrainConfig, tasks: int) -> int:
    """Steps until `train.steps`, or until `train.epochs` passes over so many tasks if that is sooner.

    Raises ConfigError for fewer tasks than a step needs.
    """
    if tasks < train.groups_per_step:
        raise ConfigError(
            f"task.train_tasks has {tasks} tasks, fewer than train.groups_per_step = {train.groups_per_step}; "
            "lower that, or write more tasks"
        )
    return min(train.steps, train.epochs * tasks // train.groups_per_step)


def check_resume(old: Config, new: Config, where: str, *, trains: bool = True) -> None:
    """Refuses to go on with a run (its resolved configuration `old` lies at `where`) under different settings.

    The run's length may change only under a constant learning rate: else the steps taken would have been others.
    trains: False for an evaluation, which may change all but what the adapter depends on.
    Raises ConfigError naming every key that may not change.
    """
    decays = new.learning.schedule != "constant"

    def may_change(key: str) -> bool:
        if not trains:
            return not key.startswith(_ADAPTER)
        return key.startswith(_MAY_CHANGE) and not (decays and key in _RUN_LENGTH)

    changed = [(key, before, after) for key, before, after in diff(old, new) if not may_change(key)]
    if changed:
        lines = [f"{key}: the run has {before!r}, this command {after!r}" for key, before, after in changed]
        raise ConfigError(
            "\n  ".join([f"{where} belongs to a run with other settings; use these, or another --workdir:", *lines])
        )


def _limits(config: Config) -> Iterator[str]:
    values, types = leaf_values(config), leaf_types(config)
    for wanted, holds, keys in _LIMITS:
        for key in filter(values.__contains__, keys.split()):  # a task has the keys of its family only
            value = values[key]
            if not holds(value):
                yield f"{key} = {value}: must be {wanted}"
            elif types[key] is int:
                if value >= 2**31:
                    yield f"{key}: must be below 2147483648, since counts are of 32 bits"
            elif not (math.isfinite(single := _float32(value)) and holds(single) and bool(single) == bool(value)):
                yield f"{key} = {value}: must be {wanted}; in float32, with which devices compute, it is {single:g}"


def _float32(value: Number) -> float:
    """What a device makes of a number: it rounds, overflows, and takes what is below the normal range for 0."""
    with np.errstate(over="ignore", under="ignore"):
        single = float(np.float32(value))
    return single if abs(single) >= np.finfo(np.float32).tiny else 0.0


def _combinations(config: Config) -> Iterator[str]:
    sampling, learning, train = config.sampling, config.learning, config.train
    if any(sign in config.name for sign in "/\\\0") or config.name in (".", ".."):
        yield f"name = {config.name!r}: it names the run folder, so it must be no path"
    yield from _task(config)
    yield from _chat(config)
    if sampling.read_block > 0 and sampling.capacity % sampling.read_block:
        yield (
            f"sampling.capacity = {sampling.capacity}: must be a multiple of "
            f"sampling.read_block = {sampling.read_block}"
        )
    if learning.pack_tokens < sampling.capacity:
        yield (
            f"learning.pack_tokens = {learning.pack_tokens}: an episode of sampling.capacity = {sampling.capacity} "
            "tokens must fit a packed row; raise it to at least that, or lower the capacity"
        )
    if learning.warmup_steps >= train.steps * learning.updates_per_step > 0:
        yield (
            f"learning.warmup_steps = {learning.warmup_steps}: must be below the number of updates, "
            f"train.steps = {train.steps} times learning.updates_per_step = {learning.updates_per_step}"
        )
    if learning.updates_per_step > train.groups_per_step > 0:
        yield (
            f"learning.updates_per_step = {learning.updates_per_step}: each update needs a group, but "
            f"train.groups_per_step = {train.groups_per_step}"
        )
    if config.eval.temperature == 0 and config.eval.tries > 1:
        yield (
            f"eval.tries = {config.eval.tries}: at eval.temperature = 0 all tries are the same; "
            "set eval.tries = 1, or raise the temperature (eval.greedy adds a greedy try anyway)"
        )
    if config.checkpoint.keep_best > 0 and config.eval.every == 0:
        yield (
            f"checkpoint.keep_best = {config.checkpoint.keep_best}: without evaluation (eval.every = 0) none is best; "
            "set checkpoint.keep_best = 0, or eval.every"
        )
    if config.mesh.data >= 0 and config.mesh.fsdp >= 1:
        yield from uneven(config, max(1, config.mesh.data), config.mesh.fsdp)
    yield from _player(config)
    yield from _warm_start(config)
    yield from _lora_modules(config.lora.modules)


def _player(config: Config) -> Iterator[str]:
    player, endpoint = config.eval.player, config.endpoint
    if config.eval.adapter and player != "policy":
        yield f"eval.adapter = {config.eval.adapter!r}: eval.player = {player!r} has none; leave it empty"
    if player == "endpoint":
        yield from _url("endpoint.url", endpoint.url, "http://127.0.0.1:8000/v1")
        if not endpoint.model:
            yield "endpoint.model is empty: give the server's name of the model"
    elif endpoint.url or endpoint.model:
        yield f"endpoint: is not asked, since eval.player = {player!r}; set that to 'endpoint', or leave these empty"


def _warm_start(config: Config) -> Iterator[str]:
    warm = config.warm_start
    given = [key for key in ("records", "demonstrations") if getattr(warm, key)]
    for key in given:
        if not warm.trajectories:
            yield (
                f"warm_start.trajectories = 0: nothing of warm_start.{key} would be imitated; "
                f"set how many trajectories, or empty warm_start.{key}"
            )
    if len(given) == 2:
        yield "warm_start.demonstrations: warm_start.records are imitated as they are; empty one of the two"
    if warm.demonstrations and not isinstance(config.task, CuratedConfig):
        yield f"warm_start.demonstrations: are of the curated set; task.name = {config.task.name!r} plays none"


def _task(config: Config) -> Iterator[str]:
    task, sampling = config.task, config.sampling
    if task.train_tasks not in ("", "demo") and _same_file(task.train_tasks, task.eval_tasks):
        yield (
            f"task.eval_tasks = {task.eval_tasks!r}: is the file of task.train_tasks; "
            "evaluate on tasks that are not trained on"
        )
    if isinstance(task, GSM8KConfig):
        if sampling.capacity <= sampling.max_turn_tokens:
            yield (
                f"sampling.capacity = {sampling.capacity}: leaves no room for the question beside a turn of "
                f"sampling.max_turn_tokens = {sampling.max_turn_tokens}; raise it, or lower that"
            )
    else:
        turn = sampling.max_turn_tokens + task.max_observation_tokens + WRAPPING_TOKENS
        if sampling.capacity <= turn:
            yield (
                f"sampling.capacity = {sampling.capacity}: one turn and its observation alone may take {turn} tokens "
                f"(sampling.max_turn_tokens = {sampling.max_turn_tokens} + task.max_observation_tokens = "
                f"{task.max_observation_tokens} + {WRAPPING_TOKENS} around the answers); raise it, or lower these"
            )
    if isinstance(task, CuratedConfig) and task.search_default_k > task.search_max_k:
        yield (
            f"task.search_default_k = {task.search_default_k}: must not exceed task.search_max_k = {task.search_max_k}"
        )
    if isinstance(task, SearchR1Config | SearchToolsConfig):
        yield from _retriever(task)
    if isinstance(task, SearchToolsConfig) and task.play == "agent" and task.max_searches >= task.max_turns:
        yield (
            f"task.max_searches = {task.max_searches}: the prompt allows so many, but in task.max_turns = "
            f"{task.max_turns} turns, the last of which answers, only {task.max_turns - 1} are possible; lower it, or "
            "raise task.max_turns"
        )
    if isinstance(task, SearchR1Config) and task.format_reward == "structured" and task.format_weight:
        yield (
            f"task.format_weight = {task.format_weight}: task.format_reward = 'structured' has weights of its own; "
            "set it to 0, or task.format_reward = 'added'"
        )


def _chat(config: Config) -> Iterator[str]:
    chat, task = config.chat, config.task
    match task:
        case SearchR1Config():
            formats = ("search_r1",)
        case GSM8KConfig():  # its score looks for <think> and <answer>
            formats = ("chatml", "qwen_xml")
        case _:
            formats = ("chatml", "qwen_xml", "harmony")
    if chat.format not in formats:
        known = " or ".join(map(repr, formats))
        yield f"chat.format = {chat.format!r}: task.name = {task.name!r} is played in {known}"
    for key, readers in _CHAT_KEYS.items():
        value = getattr(chat, key)
        if value != getattr(ChatConfig(), key) and chat.format not in readers:
            known = " and ".join(map(repr, readers))
            yield f"chat.{key} = {value!r}: chat.format = {chat.format!r} does not read it, only {known}; leave it out"
    try:
        good = date.fromisoformat(chat.date).isoformat() == chat.date
    except ValueError:
        good = False
    if not good:
        yield f"chat.date = {chat.date!r}: must be a date, YYYY-MM-DD"


# The keys that a kind of retriever uses, beside those that all do that are not local.
_RETRIEVER_KEYS = {
    "local": (),
    "search_r1": ("url",),
    "elasticsearch": ("url", "title_field", "text_field", "id_field"),
    "zhihu": ("url",),
    "wikipedia": ("url",),
}


def _retriever(task: SearchR1Config | SearchToolsConfig) -> Iterator[str]:
    options, local = task.retriever, task.retriever.kind == "local"
    used = ("kind", *_RETRIEVER_KEYS[options.kind], *(() if local else ("timeout", "tries", "cache_file")))
    for field in dataclasses.fields(RetrieverConfig):
        value = getattr(options, field.name)
        if field.name not in used and value != field.default:
            yield (
                f"task.retriever.{field.name} = {value!r}: task.retriever.kind = {options.kind!r} makes no use of it; "
                f"leave it at {field.default!r}, or choose another kind"
            )
    if not local:
        for key, value in (("corpus", task.corpus), ("index_dir", task.index_dir)):
            if value:
                yield (
                    f"task.{key} = {value!r}: would not be searched, since task.retriever.kind = {options.kind!r}; "
                    "leave it empty, or set that to 'local'"
                )
    if "url" in used and (options.url or options.kind not in ("zhihu", "wikipedia")):
        yield from _url("task.retriever.url", options.url, "http://127.0.0.1:8000/retrieve")
    for key in ("title_field", "text_field"):
        if not getattr(options, key):
            yield f"task.retriever.{key} is empty: name the field of a document"


def _url(key: str, url: str, example: str) -> Iterator[str]:
    wanted = f"an address like {example} is wanted"
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        parts, complete = urlsplit(""), False
    if not complete or parts.query or parts.fragment or not url.isascii() or " " in url:
        yield f"{key} = {url!r}: {wanted}, with nothing after its path"
    elif "@" in parts.netloc:
        yield f"{key}: has a user or password, which would be stored; give them by environment variable"


def _lora_modules(modules: Sequence[str]) -> Iterator[str]:
    for module in modules:
        if module in ("lm_head", "embed_tokens"):
            yield (
                f"lora.modules: {module} cannot be trained: the output head is frozen, so that the learner needs no "
                "[tokens, vocabulary] array; leave it out"
            )
    if len(set(modules)) < len(modules):
        yield f"lora.modules = {modules}: name each module once, or none for all"


def _required(config: Config, keys: Sequence[str]) -> Iterator[str]:
    values = leaf_values(config)
    elsewhere = values.get("task.retriever.kind", "local") != "local"
    for key in filter(values.__contains__, keys):
        if not values[key] and not (elsewhere and key == "task.corpus"):
            yield f"{key} is empty: this run needs it; set it in the config file, or --config.{key}=..."


def _files(config: Config) -> Iterator[str]:
    values = leaf_values(config)
    for key in ("task.train_tasks", "task.eval_tasks", "task.prompt_file", "eval.task_ids", *_WARM_START_FILES):
        if values.get(key, "") not in ("", "demo") and not Path(values[key]).is_file():
            yield f"{key} = {values[key]!r}: no such file{_looked(values[key])}"
    for key in ("model.path", "model.tokenizer", "task.corpus", "lora.start"):
        if values.get(key, "") not in ("", "demo") and not Path(values[key]).exists():
            yield f"{key} = {values[key]!r}: no such file or folder{_looked(values[key])}"
    if config.eval.adapter not in ("", "base", "all") and not Path(config.eval.adapter).is_dir():
        yield f"eval.adapter = {config.eval.adapter!r}: no such folder; give that of one adapter, 'base' or 'all'"
    model = Path(config.model.path)
    if config.model.path not in ("", "demo") and model.is_dir() and not (model / "config.json").is_file():
        yield f"model.path = {str(model)!r}: a folder without config.json; give a Hugging Face folder or a .gguf file"
    if model.is_file() and model.suffix != ".gguf":
        yield f"model.path = {str(model)!r}: a file must be a .gguf file; else give the Hugging Face folder around it"
    index_dir = values.get("task.index_dir", "")
    if Path(index_dir).is_file():
        yield f"task.index_dir = {index_dir!r}: is a file; a folder is wanted"
    if (cache := values.get("task.retriever.cache_file", "")) and Path(cache).is_dir():
        yield f"task.retriever.cache_file = {cache!r}: is a folder; a file is wanted"


def _texts(config: Config) -> Iterator[str]:
    for key, value in leaf_values(config).items():
        if isinstance(value, str) and "\0" in value:
            yield f"{key} = {value!r}: has a NUL character, which no name has"


def _looked(path: str) -> str:
    return "" if os.path.isabs(path) else f" (looked in {Path.cwd()})"


def _same_file(a: str, b: str) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)
