"""`--mode=eval`: fixed tasks, played by a policy, by a model elsewhere, or by a script that says what it is worth.

Each evaluation has a folder of its own, evaluations/NAME, with metrics.jsonl and rollouts as a run has them. An episode
is kept as soon as it has ended, so the same command goes on where it was stopped, and plays again what only the
infrastructure failed. What an episode samples depends on the task and the try alone, so a policy that was stopped ends
as one that never was.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jaxsearchrl.checkpoint import Checkpoints
from jaxsearchrl.config import Config, SearchR1Config, SearchToolsConfig, TelemetryConfig
from jaxsearchrl.config_checks import check_resume
from jaxsearchrl.config_tree import from_json, to_json
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.evaluation.evaluate import refuse_failures, summarise, values_in_words
from jaxsearchrl.experiment import Experiment, Stage, check_unchanged, load_experiment, load_stage
from jaxsearchrl.export import exported
from jaxsearchrl.interruption import Interrupted, Interruption, interruption
from jaxsearchrl.models.peft_adapter import WEIGHTS
from jaxsearchrl.records import RolloutRecord, read_file, records_path, to_json_line, write_records
from jaxsearchrl.rollouts.collect import collect, to_record
from jaxsearchrl.rollouts.endpoint import Endpoint, EndpointAgent
from jaxsearchrl.rollouts.loop import RETRY_SECONDS, Rollout
from jaxsearchrl.rollouts.scripted import scripted_rollout
from jaxsearchrl.run_folder import RunFolder, write_atomically
from jaxsearchrl.sampling.engine import Engine
from jaxsearchrl.seeds import seed_of
from jaxsearchrl.tasks.environment import Agent, Environment
from jaxsearchrl.tasks.family import Task
from jaxsearchrl.telemetry.metrics_file import read_metrics
from jaxsearchrl.telemetry.progress import Progress
from jaxsearchrl.telemetry.writers import MetricWriters

Ended = Callable[[int, Rollout], None]


@dataclass(frozen=True)
class Part:
    """`tries` episodes of each task, as `split` and `step` of the folder. temperature: 0 is greedy."""

    split: str
    step: int
    tries: int
    temperature: float


Play = Callable[[Part, Sequence[int], Ended], None]
"""Plays the episodes of a part that have these uids (task number times tries, plus the try)."""


@dataclass(frozen=True)
class Bench:
    """Who plays, and where the episodes go. sampled: their log-probs are known."""

    stage: Stage
    play: Play
    output: Path
    writers: MetricWriters
    progress: Progress
    interruption: Interruption
    sampled: bool


def evaluate(config: Config, workdir: str) -> None:
    """Evaluates who `eval.player` names. A run in `workdir` stays as it is. Raises UserError."""
    with ExitStack() as stack:
        progress = Progress()
        folder = stack.enter_context(RunFolder(workdir))
        stop = stack.enter_context(interruption())
        sampled = config.eval.player == "policy"
        steps: dict[int, Path | None] = {0: None}
        if sampled:
            name, steps = _adapters(config, folder)
            stage = experiment = load_experiment(config, progress)
            _check_run(config, folder, experiment)
            play = _policy(experiment, steps, progress)
        else:
            name, stage = config.eval.player, load_stage(config, progress)
            play = _without_tokens(stage)
        if isinstance(config.task, SearchR1Config | SearchToolsConfig) and config.task.play != "agent":
            name += f"_{config.task.play}"
        output = folder.evaluation(name, to_json(config))
        inputs = stage.fingerprints | {f"adapter {step}": _sha256(path) for step, path in steps.items()}
        if not _same_inputs(output, inputs):
            progress.note(f"{output}: what is evaluated changed since; it begins anew")
        writers = stack.enter_context(MetricWriters(output, TelemetryConfig(tensorboard=False)))
        bench = Bench(stage, play, output, writers, progress, stop, sampled)
        try:
            for part in _parts(config, steps):
                _evaluate(bench, part)
        except Interrupted:
            return progress.note("stopped on request before the evaluation was complete; the same command goes on")
        progress.note(f"metrics and rollouts are in {output}")


def _parts(config: Config, steps: Iterable[int]) -> Iterator[Part]:
    """A script does the same every time, so it plays once."""
    settings = config.eval
    for step in steps:
        if settings.player in ("expert", "question"):
            yield Part("eval", step, 1, 0.0)
            continue
        yield Part("eval", step, settings.tries, settings.temperature)
        if settings.greedy:
            yield Part("eval_greedy", step, 1, 0.0)


def _evaluate(bench: Bench, part: Part) -> None:
    """Plays what a part still lacks, and writes its records and metrics."""
    stage, tasks, split, step = bench.stage, bench.stage.eval_tasks, part.split, part.step
    if any(row["step"] == step for row in read_metrics(bench.output, split)):
        return bench.progress.note(f"{split} of step {step} is complete already")
    measures, config = stage.family.measures, stage.config
    about = {"run": config.name, "split": split, "step": step, "adapter": step}
    path = records_path(bench.output, split, step).with_name(f".step_{step:06d}.unfinished.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {record.uid: record for record in (read_file(path) if path.exists() else ()) if not record.failed}
    write_atomically(path, "".join(f"{to_json_line(record)}\n" for record in kept.values()).encode())
    left = [uid for uid in range(len(tasks) * part.tries) if uid not in kept]
    stage.searches.take()  # what came before these episodes is not theirs
    with path.open("a") as file, bench.progress.phase(split, total=len(left)) as advance:

        def ended(uid: int, rollout: Rollout) -> None:
            kept[uid] = to_record(rollout, uid, tasks, part.tries, **about)
            file.write(f"{to_json_line(kept[uid])}\n")
            file.flush()
            advance()
            bench.interruption.heed()

        if left:
            bench.play(part, left, ended)
    records: list[RolloutRecord] = [kept[uid] for uid in sorted(kept)]
    refuse_failures(records, config.train.max_infrastructure_share, f"{split} of step {step}")
    metrics = summarise(records, part.tries, measures) | stage.searches.take()
    if not bench.sampled:
        metrics.pop("entropy", None)
    write_records(bench.output, split, step, records)
    bench.writers.write(step, split, metrics)
    path.unlink()
    said = values_in_words(metrics, measures)
    bench.progress.note(f"{split} of step {step}: {said}  ({len(tasks)} tasks x {part.tries})")


# ------------------------------------------------------------------------------------------------------------ who plays


def _policy(experiment: Experiment, steps: dict[int, Path | None], progress: Progress) -> Play:
    """The model with one adapter or another."""
    config = experiment.config
    base = experiment.new_adapter()
    loaded = {step: experiment.adapter_in(path) if path else base for step, path in steps.items()}

    @cache
    def sampler() -> Engine:  # not needed where everything is complete
        with progress.phase("compiling the sampler"):
            return experiment.new_engine(base)

    def play(part: Part, uids: Sequence[int], ended: Ended) -> None:
        engine = sampler()
        # Always the same random stream, which is training's: only the policy differs.
        engine.renew(loaded[part.step], seed_of(config.train.seed, part.split, 0))
        collect(
            experiment.eval_tasks,
            part.tries,
            lambda task: experiment.environment(task, part.step),
            engine,
            experiment.chat,
            config.sampling,
            temperature=part.temperature,
            uids=uids,
            ended=ended,
        )

    return play


def _without_tokens(stage: Stage) -> Play:
    """Agents that are no policy of ours, `sampling.slots` of them at a time."""
    config = stage.config
    new_agent = _agents(stage)
    pauses = RETRY_SECONDS if config.eval.player == "endpoint" else ()

    def episode(uid: int, part: Part) -> Rollout:
        task = stage.eval_tasks[uid // part.tries]
        environment = stage.environment(task)
        agent = new_agent(task, environment, part.temperature)
        return scripted_rollout(agent, environment, stage.chat, config.sampling, pauses)

    def play(part: Part, uids: Sequence[int], ended: Ended) -> None:
        with ThreadPoolExecutor(config.sampling.slots) as pool:
            playing = {pool.submit(episode, uid, part): uid for uid in uids}
            try:
                for future in as_completed(playing):
                    ended(playing[future], future.result())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    return play


def _agents(stage: Stage) -> Callable[[Task, Environment, float], Agent]:
    config, family = stage.config, stage.family
    if config.eval.player == "endpoint":
        endpoint = Endpoint(config.endpoint, config.sampling.max_turn_tokens)
        endpoint.check()
        return lambda task, environment, temperature: EndpointAgent(
            endpoint, environment.tools, stage.chat, temperature
        )
    if config.eval.player == "expert":
        return lambda task, environment, temperature: family.expert(task)
    asker = family.asker(stage.train_tasks)
    if asker is None:
        raise ConfigError(
            f"eval.player = 'question': task.name = {config.task.name!r} needs a model to answer; to show it what "
            "the raw question finds, set task.play = 'rag' where the family has that"
        )
    return lambda task, environment, temperature: asker


# ------------------------------------------------------------------------------------------------------ which adapters


def _adapters(config: Config, folder: RunFolder) -> tuple[str, dict[int, Path | None]]:
    """The evaluation's name, and the adapters that it plays by step; None is the base model."""
    found, wanted = exported(folder), config.eval.adapter
    match wanted:
        case "base":
            return "base", {0: None}
        case "":
            if found:
                return f"step_{max(found):06d}", {max(found): found[max(found)]}
            return ("start", {0: Path(config.lora.start)}) if config.lora.start else ("base", {0: None})
        case "all":
            if not found:
                raise UserError(f"eval.adapter = 'all': {folder.path} has no adapters; train first")
            return "all", {step: found[step] for step in sorted(found)}
        case _:
            path = Path(wanted)
            step = path.name.removeprefix("step_")
            return path.name, {int(step) if step.isdecimal() else 0: path}


def _check_run(config: Config, folder: RunFolder, experiment: Experiment) -> None:
    """Raises UserError unless model, tokenizer and adapter are those of the run that is in the folder, if one is."""
    if not folder.checkpoints.is_dir():
        return
    with Checkpoints(folder.checkpoints) as checkpoints:
        steps = checkpoints.steps()
        stored = folder.read_config()
        if not steps or stored is None:
            return
        where = str(folder.path / "config.json")
        check_resume(from_json(Config, stored, where), config, where, trains=False)
        now = {name: experiment.fingerprints[name] for name in ("base", "tokenizer")}
        check_unchanged(now, checkpoints.host(steps[-1]), folder.path)


# -------------------------------------------------------------------------------------------------- what is kept counts


def _same_inputs(output: Path, inputs: dict[str, str]) -> bool:
    """Whether what lies in the folder was played with these; if not, it is dropped. They are noted there."""
    path = output / "inputs.json"
    stored = json.loads(path.read_text()) if path.is_file() else {}
    same = all(stored[name] == inputs[name] for name in stored.keys() & inputs.keys())
    if not same:
        (output / "metrics.jsonl").unlink(missing_ok=True)
        for unfinished in (output / "rollouts").glob("*/.step_*.unfinished.jsonl"):
            unfinished.unlink()
        stored = {}
    write_atomically(path, json.dumps(stored | inputs, indent=2).encode())
    return same


def _sha256(adapter: Path | None) -> str:
    if adapter is None:
        return "none"
    weights = adapter / WEIGHTS
    return hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "missing"
