"""`--mode=eval`: fixed tasks, played by a policy, by a model elsewhere, or by a script that says what it is worth.

Each evaluation has a folder of its own, evaluations/NAME, with metrics.jsonl and rollouts as a run has them. An episode
is kept as soon as it has ended, so the same command goes on where it was stopped, and plays again what only the
infrastructure failed. What an episode samples depends on the task and the try alone, so a policy that was stopped ends
as one that never was.

Several processes share out the tasks that are left. The first reads and writes; the others give it their episodes when
all have played their share, or are asked to stop.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jaxsearchrl import hosts
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
from jaxsearchrl.rollouts.shared import all_records
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
        name, steps = hosts.once(_adapters, config, folder) if sampled else (config.eval.player, [(0, "")])
        stage = load_experiment(config, progress) if sampled else load_stage(config, progress)
        hosts.check_same(stage.fingerprints)
        if isinstance(stage, Experiment):
            _check_run(config, folder, stage)
            play = _policy(stage, steps, progress)
        else:
            play = _without_tokens(stage)
        if isinstance(config.task, SearchR1Config | SearchToolsConfig) and config.task.play != "agent":
            name += f"_{config.task.play}"
        output = Path(hosts.once(folder.evaluation, name, to_json(config)))
        if not hosts.once(_same_inputs, output, stage.fingerprints, steps):
            progress.note(f"{output}: what is evaluated changed since; it begins anew")
        writers = stack.enter_context(MetricWriters(output, TelemetryConfig(tensorboard=False)))
        bench = Bench(stage, play, output, writers, progress, stop, sampled)
        try:
            for part in _parts(config, [step for step, _ in steps]):
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
    stage, split, step = bench.stage, part.split, part.step
    if hosts.once(lambda: any(row["step"] == step for row in read_metrics(bench.output, split))):
        return bench.progress.note(f"{split} of step {step} is complete already")
    measures = stage.family.measures
    path = records_path(bench.output, split, step).with_name(f".step_{step:06d}.unfinished.jsonl")
    stage.searches.take()  # what came before these episodes is not theirs
    records = _played(bench, part, path)
    refuse_failures(records, stage.config.train.max_infrastructure_share, f"{split} of step {step}")
    metrics = summarise(records, part.tries, measures) | stage.searches.take()
    if not bench.sampled:
        metrics.pop("entropy", None)
    hosts.once(write_records, bench.output, split, step, records)
    bench.writers.write(step, split, metrics)
    hosts.once(path.unlink)
    said = values_in_words(metrics, measures)
    bench.progress.note(f"{split} of step {step}: {said}  ({len(stage.eval_tasks)} tasks x {part.tries})")


def _played(bench: Bench, part: Part, path: Path) -> list[RolloutRecord]:
    """All records of a part; what `path` lacks is played, and added there. Raises Interrupted in all processes."""
    stage, tasks = bench.stage, bench.stage.eval_tasks
    about = {"run": stage.config.name, "split": part.split, "step": part.step, "adapter": part.step}
    kept = _kept(path) if hosts.is_first() else {}
    left = hosts.once(lambda: [uid for uid in range(len(tasks) * part.tries) if uid not in kept])
    places = sorted({uid // part.tries for uid in left})
    share = {places[number] for number in hosts.share(len(places))}
    mine = [uid for uid in left if uid // part.tries in share]
    stopped = False
    with (
        open(path if hosts.is_first() else os.devnull, "a") as file,
        bench.progress.phase(part.split, total=len(mine)) as advance,
    ):

        def keep(record: RolloutRecord) -> None:
            kept[record.uid] = record
            file.write(f"{to_json_line(record)}\n")
            file.flush()

        def ended(uid: int, rollout: Rollout) -> None:
            keep(to_record(rollout, uid, tasks, part.tries, **about))
            advance()
            bench.interruption.heed()

        try:
            if mine:
                bench.play(part, mine, ended)
        except Interrupted:
            stopped = True
        records, stopped = all_records(kept.values(), stopped, stage.searches)
        for record in records:
            if record.uid not in kept:
                keep(record)
        if stopped:
            raise Interrupted
    return [kept[uid] for uid in sorted(kept)]


def _kept(path: Path) -> dict[int, RolloutRecord]:
    """What was played before, but for what the infrastructure failed; the file is left whole, for more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {record.uid: record for record in (read_file(path) if path.exists() else ()) if not record.failed}
    write_atomically(path, "".join(f"{to_json_line(record)}\n" for record in kept.values()).encode())
    return kept


# ------------------------------------------------------------------------------------------------------------ who plays


def _policy(experiment: Experiment, steps: Sequence[tuple[int, str]], progress: Progress) -> Play:
    """The model with one adapter or another."""
    config = experiment.config
    base = experiment.new_adapter()
    loaded = {step: experiment.adapter_in(path) if path else base for step, path in steps}

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
    """Agents that are no policy of ours, `sampling.slots` of them at a time, but at least one in each process."""
    config = stage.config
    at_a_time = max(1, len(hosts.share(config.sampling.slots)))
    new_agent = _agents(stage)
    pauses = RETRY_SECONDS if config.eval.player == "endpoint" else ()

    def episode(uid: int, part: Part) -> Rollout:
        task = stage.eval_tasks[uid // part.tries]
        environment = stage.environment(task)
        agent = new_agent(task, environment, part.temperature)
        return scripted_rollout(agent, environment, stage.chat, config.sampling, pauses)

    def play(part: Part, uids: Sequence[int], ended: Ended) -> None:
        with ThreadPoolExecutor(at_a_time) as pool:
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


def _adapters(config: Config, folder: RunFolder) -> tuple[str, list[tuple[int, str]]]:
    """The evaluation's name, and the steps that it plays, each with its adapter's folder; "" is the base model."""
    found, wanted = exported(folder), config.eval.adapter
    match wanted:
        case "base":
            return "base", [(0, "")]
        case "":
            if found:
                return f"step_{max(found):06d}", [(max(found), str(found[max(found)]))]
            return "start" if config.lora.start else "base", [(0, config.lora.start)]
        case "all":
            if not found:
                raise UserError(f"eval.adapter = 'all': {folder.path} has no adapters; train first")
            return "all", [(step, str(found[step])) for step in sorted(found)]
        case _:
            path = Path(wanted)
            step = path.name.removeprefix("step_")
            return path.name, [(int(step) if step.isdecimal() else 0, wanted)]


def _check_run(config: Config, folder: RunFolder, experiment: Experiment) -> None:
    """Raises UserError unless model, tokenizer and adapter are those of the run that is in the folder, if one is."""
    if not hosts.once(folder.checkpoints.is_dir):
        return
    with Checkpoints(folder.checkpoints) as checkpoints:
        steps = checkpoints.steps()
        stored = folder.read_config()
        if not steps or stored is None:
            return
        where = str(folder.path / "config.json")
        check_resume(from_json(Config, stored, where), config, where, trains=False)
        now = {name: experiment.fingerprints[name] for name in ("base", "tokenizer")}
        check_unchanged(now, hosts.once(checkpoints.host, steps[-1]), folder.path)


# -------------------------------------------------------------------------------------------------- what is kept counts


def _same_inputs(output: Path, fingerprints: dict[str, str], steps: Sequence[tuple[int, str]]) -> bool:
    """Whether what lies in the folder was played with these; if not, it is dropped. They are noted there."""
    inputs = fingerprints | {f"adapter {step}": _sha256(folder) for step, folder in steps}
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


def _sha256(adapter: str) -> str:
    if not adapter:
        return "none"
    weights = Path(adapter) / WEIGHTS
    return hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "missing"
