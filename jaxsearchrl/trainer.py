"""The loop: sample groups of rollouts, remove the group's mean, update the adapter; evaluate, record and save.

A step is a pure function of the configuration, the adapter, the optimizer's state and the step's number: tasks, random
streams and schedules follow from the number. So resuming is running the same command, and the result is that of a run
that never stopped.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxsearchrl import hosts
from jaxsearchrl.checkpoint import Checkpoints
from jaxsearchrl.config import Config
from jaxsearchrl.config_checks import check_resume, total_steps
from jaxsearchrl.config_tree import from_json, to_json
from jaxsearchrl.errors import StoppedByAlarm, UserError
from jaxsearchrl.evaluation.evaluate import refuse_failures, summarise, values_in_words
from jaxsearchrl.evaluation.report import write_report
from jaxsearchrl.experiment import Experiment, check_unchanged, load_experiment
from jaxsearchrl.hosts import once
from jaxsearchrl.interruption import Interrupted, Interruption, interruption
from jaxsearchrl.learning.advantages import GroupAdvantages, group_advantages, shuffled
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.step import batches_of, learn
from jaxsearchrl.models.decoder import Weights
from jaxsearchrl.records import from_json_line, to_json_line, write_records
from jaxsearchrl.rollouts.collect import collect, to_records
from jaxsearchrl.rollouts.loop import Rollout
from jaxsearchrl.rollouts.shared import play_together
from jaxsearchrl.run_folder import RunFolder
from jaxsearchrl.sampling.engine import Engine
from jaxsearchrl.seeds import seed_of, task_order
from jaxsearchrl.tasks.family import Task
from jaxsearchrl.telemetry.alarms import alarms
from jaxsearchrl.telemetry.compilations import compilations
from jaxsearchrl.telemetry.metrics import expert_metrics, rollout_metrics
from jaxsearchrl.telemetry.metrics_file import read_metrics
from jaxsearchrl.telemetry.plots import write_plots
from jaxsearchrl.telemetry.progress import Progress
from jaxsearchrl.telemetry.writers import MetricWriters
from jaxsearchrl.warm_start import examples, warm_start


@dataclass
class Run:
    """A run at work: its parts, and the state that steps replace.

    step counts the steps that were tried; total is where the run ends.
    reference is the adapter at the start of RL, kept for a KL term only.
    """

    config: Config
    experiment: Experiment
    engine: Engine
    learner: Learner
    update: Any
    folder: RunFolder
    checkpoints: Checkpoints
    writers: MetricWriters
    progress: Progress
    interruption: Interruption
    total: int
    lora: Weights
    opt_state: Any
    reference: Weights | None = None
    step: int = 0


def train(config: Config, workdir: str) -> None:
    """Trains to the configured end, going on from the newest checkpoint in `workdir` if there is one."""
    with ExitStack() as stack:
        run = _open(config, workdir, stack)
        run.folder.write_config(to_json(config))
        if run.total < config.train.steps:
            run.progress.note(
                f"train.steps = {config.train.steps}, but {len(run.experiment.train_tasks)} training tasks are used up "
                f"after {run.total} steps: raise train.epochs = {config.train.epochs} for more"
            )
        if run.step >= run.total:
            run.progress.note(f"nothing to train: the run is at step {run.step} of {run.total}")
        if not run.checkpoints.steps() and not _start(run):
            return
        with _saved_when_stopped(run):
            _complete(run)
            _heed_alarms(run)
            while run.step < run.total:
                with run.progress.step(run.step + 1, run.total):
                    _step(run)
                    _complete(run)
                _heed_alarms(run)
            _finish(run)


def sft(config: Config, workdir: str) -> None:
    """The supervised warm start alone, saved as step 0; `train` in the same folder goes on from it."""
    if not config.warm_start.trajectories:
        raise UserError("warm_start.trajectories is 0: say how many trajectories --mode=sft should imitate")
    with ExitStack() as stack:
        run = _open(config, workdir, stack)
        if run.checkpoints.steps():
            raise UserError(f"{run.folder.path} has been warm-started already; choose another --workdir")
        run.folder.write_config(to_json(config))
        if not _start(run):
            return
        with _saved_when_stopped(run):
            _complete(run)
            run.progress.note(f"the adapter is in {run.folder.adapters}")


# ------------------------------------------------------------------------------------------------------------- one step


def _step(run: Run) -> None:
    """One update: rollouts, advantages, gradient, new adapter. Until that is there, the run's state is the old one."""
    config, experiment = run.config, run.experiment
    before = compilations()
    groups, tries = config.train.groups_per_step, config.train.group_size
    places = task_order(len(experiment.train_tasks), config.train.seed, run.step * groups, (run.step + 1) * groups)
    tasks = [experiment.train_tasks[place] for place in places]
    rollouts = _rollouts(run, tasks, tries, "train", config.sampling.temperature)
    advantages = group_advantages(
        [r.score.reward if r.score else 0.0 for r in rollouts],
        [index // tries for index in range(len(rollouts))],
        [r.score is not None for r in rollouts],
        divide_by_deviation=config.learning.divide_by_deviation,
    )
    if config.learning.shuffle_advantages:
        advantages = shuffled(advantages, seed_of(config.train.seed, "shuffled advantages", run.step))
    step = run.step + 1
    about = {"run": config.name, "split": "train", "step": step, "adapter": run.step}
    records = to_records(rollouts, tasks, tries, advantages=advantages.advantages, **about)
    once(write_records, run.folder.path, "train", step, records)
    metrics = rollout_metrics(records, tries) | expert_metrics(run.engine.load) | experiment.searches.take()
    refuse_failures(records, config.train.max_infrastructure_share, f"step {step}")
    run.interruption.check()
    lora, opt_state, learned = _learn(run, rollouts, advantages)
    run.lora, run.opt_state, run.step = lora, opt_state, step
    seconds = {f"seconds/{name}": value for name, value in run.progress.seconds.items()}
    sampled = sum(rollout.trajectory.action_tokens for rollout in rollouts)
    speed = {
        "speed/sampled_per_second": sampled / max(run.progress.seconds["rollouts"], 1e-9),
        "speed/trained_per_second": learned.pop("packed_tokens") / max(run.progress.seconds.get("update", 0.0), 1e-9),
        "compilations": float(compilations() - before),
        "data/position": float(run.step * groups),
    }
    metrics |= learned | seconds | speed
    run.writers.write(step, "train", metrics)
    update = f"gap {learned['learn/logprob_gap']:.1e}" if "learn/logprob_gap" in learned else "update skipped"
    run.progress.note(
        f"reward {metrics.get('reward', float('nan')):.3f}  {values_in_words(metrics, experiment.family.measures)}  "
        f"empty {metrics.get('rate/empty', 1):.0%}  no signal {metrics.get('groups/no_signal', 1):.0%}  {update}"
    )
    once(_tell_alarms, run)
    if config.telemetry.plots:
        once(write_plots, run.folder.path)


def _rollouts(
    run: Run, tasks: Sequence[Task], tries: int, part: str, temperature: float, step: int = -1
) -> list[Rollout]:
    """Plays with the current adapter, on a random stream of its own."""
    run.experiment.searches.take()  # what came before these rollouts is not theirs
    run.engine.renew(run.lora, seed_of(run.config.train.seed, part, run.step if step < 0 else step))
    mine = len(hosts.share(len(tasks))) * tries
    with run.progress.phase("rollouts" if part == "train" else part, total=mine) as advance:

        def count(uid: int, rollout: Rollout) -> None:
            advance()
            run.interruption.heed()

        def play(uids: Sequence[int]) -> list[Rollout]:
            return collect(
                tasks,
                tries,
                lambda task: experiment.environment(task, run.step),
                run.engine,
                experiment.chat,
                run.config.sampling,
                temperature=temperature,
                uids=uids,
                ended=count,
            )

        experiment = run.experiment
        return play_together(play, len(tasks), tries, run.engine, experiment.searches)


def _learn(run: Run, rollouts: Sequence[Rollout], advantages: GroupAdvantages) -> tuple[Weights, Any, dict[str, float]]:
    """The new adapter and optimizer state. Without signal both stay as they are, and the skip is counted."""
    learning, groups = run.config.learning, run.config.train.groups_per_step
    batches, counts = batches_of([rollout.trajectory for rollout in rollouts], advantages, groups, learning)
    if not batches:
        return run.lora, run.opt_state, counts | {"learn/skipped": 1.0}
    with run.progress.phase("update", total=sum(len(packed) for packed, _ in batches)) as advance:
        lora, opt_state, learned = learn(
            run.learner, run.update, run.lora, run.opt_state, batches, learning, run.reference, advance
        )
    return lora, opt_state, counts | learned


# ----------------------------------------------------------------------------------------------------- around the steps


def _open(config: Config, workdir: str, stack: ExitStack) -> Run:
    """Takes the run folder, loads what the configuration names, compiles, restores the newest checkpoint."""
    progress = Progress()
    folder = stack.enter_context(RunFolder(workdir))
    keep = config.checkpoint

    def quality(step: int) -> float | None:  # asked for when a step is saved; a step without evaluation has none
        return (_row(folder.path, "eval", step) or {}).get(f"score/{experiment.family.measures[0]}")

    checkpoints = stack.enter_context(Checkpoints(folder.checkpoints, keep.keep_last, keep.keep_best, quality))
    stored = folder.read_config()
    if stored is not None and checkpoints.steps():  # what never came to a checkpoint may be set anew
        where = str(folder.path / "config.json")
        check_resume(from_json(Config, stored, where), config, where)
    experiment = load_experiment(config, progress)
    hosts.check_same(experiment.fingerprints)
    total = total_steps(config.train, len(experiment.train_tasks))
    lora = experiment.first_adapter()
    optimizer = make_optimizer(config.learning, total * config.learning.updates_per_step)
    with progress.phase("compiling the sampler"):
        engine = experiment.new_engine(lora)
    fresh = {"lora": lora, "opt_state": experiment.new_state(optimizer, lora)}
    if config.learning.kl_weight:
        fresh["reference"] = lora
    restored = _restored(checkpoints, fresh, experiment)
    step, state = restored or (0, fresh)
    writers = stack.enter_context(MetricWriters(folder.path, config.telemetry))
    writers.truncate_after(step if restored else -1)
    if restored:
        progress.note(f"going on after step {step}, from {checkpoints.folder / str(step)}")
    return Run(
        config=config,
        experiment=experiment,
        engine=engine,
        learner=Learner(
            experiment.model,
            experiment.base,
            policy_loss(config.learning),
            vocab_size=experiment.vocab_size,
            temperature=config.sampling.temperature,
        ),
        update=make_update(optimizer),
        folder=folder,
        checkpoints=checkpoints,
        writers=writers,
        progress=progress,
        interruption=stack.enter_context(interruption()),
        total=total,
        lora=state["lora"],
        opt_state=state["opt_state"],
        reference=state["reference"] if restored and "reference" in state else None,
        step=step,
    )


def _restored(
    checkpoints: Checkpoints, state: dict[str, Any], experiment: Experiment
) -> tuple[int, dict[str, Any]] | None:
    """(step, state) of the newest checkpoint, if there is one."""
    restored = checkpoints.restore_latest(state)
    if restored is None:
        return None
    step, state, host = restored
    check_unchanged(experiment.fingerprints, host, checkpoints.folder.parent)
    return step, state


@contextmanager
def _saved_when_stopped(run: Run) -> Iterator[None]:
    """A run that is asked to stop within the block ends there, with its state saved."""
    try:
        yield
    except Interrupted:
        if run.step not in run.checkpoints.steps():
            _save(run)
        run.progress.note(f"stopped on request after step {run.step}; the same command goes on from there")


def _complete(run: Run) -> None:
    """The evaluation and the checkpoint that are due after a step, as far as a run that went on lacks them."""
    last = run.step == run.total
    every = run.config.eval.every
    if every and (run.step % every == 0 or last):
        for split in _splits(run.config):
            if once(_row, run.folder.path, split, run.step) is None:
                _evaluate(run, split)
    if (run.step % run.config.checkpoint.every == 0 or last) and run.step not in run.checkpoints.steps():
        _save(run)


def _heed_alarms(run: Run) -> None:
    """Ends the run, whole and with a report, where the last step raised an alarm of `alarms.stop_on`.

    Raises StoppedByAlarm; so does the same command again, before another step.
    """
    found = once(_stopping_alarms, run)
    if not found:
        return
    if run.step not in run.checkpoints.steps():
        _save(run)
    _finish(run)
    raise StoppedByAlarm(
        f"{'; '.join(found.values())}. Step {run.step} is saved; to go on all the same, leave "
        f"{', '.join(map(repr, found))} out of alarms.stop_on (--config.alarms.stop_on= for none)"
    )


def _stopping_alarms(run: Run) -> dict[str, str]:
    """Those of `alarms.stop_on` that the last step raised, by name."""
    found = alarms(read_metrics(run.folder.path, "train"))
    return {alarm.name: str(alarm) for alarm in found if alarm.name in run.config.alarms.stop_on}


def _tell_alarms(run: Run) -> None:
    for alarm in alarms(read_metrics(run.folder.path, "train")):
        run.progress.note(f"alarm: {alarm}")


def _save(run: Run) -> None:
    with run.progress.phase("checkpoint"):
        once(run.experiment.export_adapter, run.folder.adapters / f"step_{run.step:06d}", run.lora)
        state = {"lora": run.lora, "opt_state": run.opt_state}
        if run.reference is not None:
            state["reference"] = run.reference
        run.checkpoints.save(run.step, state, run.experiment.fingerprints)


def _row(workdir: Path, kind: str, step: int) -> dict[str, Any] | None:
    """A step's metrics of a kind, if it has them."""
    return next((row for row in read_metrics(workdir, kind) if row["step"] == step), None)


def _start(run: Run) -> bool:
    """Before step 0: the warm start, and a copy of what RL starts from. False if asked to stop in between."""
    if run.config.warm_start.trajectories and not _warm_start(run):
        return False
    if run.config.learning.kl_weight:
        run.reference = jax.tree.map(jnp.copy, run.lora)  # updates give up the arrays that they replace
    return True


def _warm_start(run: Run) -> bool:
    """Supervised updates. False if asked to stop in between."""
    with run.progress.phase("trajectories to imitate"):
        records = [from_json_line(line, "warm start") for line in once(_examples, run)]
    write = lambda number, metrics: run.writers.write(0, f"warm_start/{number}", metrics)  # noqa: E731
    try:
        run.lora = warm_start(run.experiment, run.lora, records, run.progress, write, run.interruption.check)
    except Interrupted:
        run.progress.note("stopped on request during the warm start; the same command begins it again")
        return False
    return True


def _examples(run: Run) -> list[str]:
    """What is imitated, as lines of records, which are written."""
    records = examples(run.experiment)
    write_records(run.folder.path, "warm_start", 0, records)
    return [*map(to_json_line, records)]


def _splits(config: Config) -> list[str]:
    return ["eval", "eval_greedy"] if config.eval.greedy else ["eval"]


def _evaluate(run: Run, split: str) -> None:
    """Sampled or greedy tries of the evaluation tasks, always on one random stream: only the policy differs."""
    settings, tasks = run.config.eval, run.experiment.eval_tasks
    tries, temperature = (1, 0.0) if split == "eval_greedy" else (settings.tries, settings.temperature)
    rollouts = _rollouts(run, tasks, tries, split, temperature, step=0)
    records = to_records(rollouts, tasks, tries, run=run.config.name, split=split, step=run.step, adapter=run.step)
    once(write_records, run.folder.path, split, run.step, records)
    measures = run.experiment.family.measures
    metrics = summarise(records, tries, measures) | run.experiment.searches.take()
    metrics[f"seconds/{split}"] = run.progress.seconds[split]
    refuse_failures(records, run.config.train.max_infrastructure_share, f"{split} after step {run.step}")
    run.writers.write(run.step, split, metrics)
    said = values_in_words(metrics, measures)
    run.progress.note(f"{split} after step {run.step}: {said}  ({len(tasks)} tasks x {tries})")


def _finish(run: Run) -> None:
    if run.config.telemetry.plots:
        once(write_plots, run.folder.path)
    with run.progress.phase("report"):
        report = once(write_report, run.folder.path, run.experiment, run.step)
    run.progress.note(report)
