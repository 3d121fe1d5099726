"""The warm start: LoRA cross-entropy on recorded or scripted trajectories, for a model that never calls a tool.

What the expert of a task family knows is said there: the curated set's is a rule that never sees the gold.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from jaxsearchrl.errors import UserError
from jaxsearchrl.experiment import Experiment
from jaxsearchrl.learning.learner import Learner, make_update, supervised_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import TrainRow, pack, row_from
from jaxsearchrl.models.decoder import Weights
from jaxsearchrl.records import RolloutRecord, read_file
from jaxsearchrl.rollouts.collect import to_records
from jaxsearchrl.rollouts.loop import Rollout
from jaxsearchrl.rollouts.scripted import scripted_rollout
from jaxsearchrl.seeds import seed_of, task_order
from jaxsearchrl.tasks.curated.demonstrations import DemonstrationAgent, load_demonstrations
from jaxsearchrl.tasks.environment import Agent
from jaxsearchrl.tasks.family import Task
from jaxsearchrl.telemetry.progress import Progress


def examples(experiment: Experiment) -> list[RolloutRecord]:
    """The trajectories to imitate: `warm_start.records`, or `warm_start.demonstrations` played on this corpus, or the
    task's expert on training tasks.

    Tasks come in a seeded order, without those in which the agent teaches nothing good. Raises UserError where it never
    does.
    """
    config = experiment.config
    if config.warm_start.records:
        return _recorded(config.warm_start.records, experiment.vocab_size)[: config.warm_start.trajectories]
    family = experiment.family
    rollouts, tasks, left_out = [], [], Counter[str]()
    for task, agent in _agents(experiment):
        rollout = scripted_rollout(agent, experiment.environment(task), experiment.chat, config.sampling)
        if not rollout.score or not family.imitable(rollout.score):
            continue
        if isinstance(agent, DemonstrationAgent) and (why := _unfit(rollout)):
            left_out[why] += 1
        else:
            rollouts, tasks = [*rollouts, rollout], [*tasks, task]
        if len(rollouts) == config.warm_start.trajectories:
            break
    if left_out:
        reasons = ", ".join(f"{reason} {count}" for reason, count in left_out.items())
        logging.getLogger(__name__).warning("demonstrations that are not imitated: %s", reasons)
    if not rollouts and config.warm_start.demonstrations:
        raise UserError(
            "warm_start.demonstrations: none of them ends by finish with something curated here; is task.corpus "
            "theirs, and do they fit task.max_turns and sampling.capacity?"
        )
    if not rollouts:
        raise UserError(
            "warm_start.trajectories: searching for the training questions as they are showed an answer to none of "
            "them, so there is nothing to imitate; is task.corpus theirs?"
        )
    return to_records(rollouts, tasks, 1, run=config.name, split="warm_start", step=0)


def _unfit(rollout: Rollout) -> str:
    """Why a demonstration that was played is not worth imitating; "" where it is."""
    if rollout.stop_reason != "finish":
        return f"ended by {rollout.stop_reason}"
    return "nothing curated" if rollout.score and rollout.score.parts["empty"] else ""


def _agents(experiment: Experiment) -> Iterator[tuple[Task, Agent]]:
    """Tasks in a seeded order, each with whoever plays it."""
    config, family = experiment.config, experiment.family

    def in_order(count: int) -> list[int]:
        return task_order(count, seed_of(config.train.seed, "warm start"), 0, count)

    if config.warm_start.demonstrations:
        shown = load_demonstrations(config.warm_start.demonstrations)
        yield from ((shown[number].task, DemonstrationAgent(shown[number])) for number in in_order(len(shown)))
    else:
        tasks = [experiment.train_tasks[number] for number in in_order(len(experiment.train_tasks))]
        yield from ((task, family.expert(task)) for task in tasks)


def _recorded(path: str, vocab_size: int) -> list[RolloutRecord]:
    """Raises UserError for records whose ids are not this model's: they would teach it noise."""
    records = read_file(path)
    for number, record in enumerate(records, start=1):
        if record.tokens and max(record.tokens) >= vocab_size:
            raise UserError(
                f"warm_start.records = {path!r}: record {number} (task {record.task_id}) has the token id "
                f"{max(record.tokens)}, but the model's ids end at {vocab_size - 1}; it was made with another tokenizer"
            )
        if not record.failed and not record.tokens:
            raise UserError(
                f"warm_start.records = {path!r}: record {number} (task {record.task_id}) has no tokens; only rollouts "
                "of a token-level policy or of the rule can be imitated"
            )
    return records


def warm_start(
    experiment: Experiment,
    lora: Weights,
    records: Sequence[RolloutRecord],
    progress: Progress,
    write: Callable[[int, dict[str, float]], object],
    check: Callable[[], None],
) -> Weights:
    """The adapter after `warm_start.epochs` passes over the records; `lora` is given up.

    write: called with each update's number and metrics. check: called after each; what it raises ends the warm start.
    Raises UserError for a record that is too long, before the first update, and when no update was made.
    The loss of an update is the mean over its action tokens. The optimizer starts anew, and so does RL's afterwards.
    """
    config = experiment.config
    warm = config.warm_start
    rows = [row_from(i, record.trajectory(), 1.0) for i, record in enumerate(records) if not record.failed]
    rows = [row for row in rows if row.action_tokens]
    if not rows:
        raise UserError("the warm start has no trajectory with a turn: see warm_start.records, or the task's rule")
    for row in rows:
        if len(row) > config.learning.pack_tokens:
            raise UserError(
                f"the warm start's record {row.uid + 1} (task {records[row.uid].task_id}) has {len(row)} tokens, but "
                f"learning.pack_tokens is {config.learning.pack_tokens}; raise it, or leave the record out"
            )
    updates = warm.epochs * -(-len(rows) // warm.rows_per_step)
    settings = replace(
        config.learning,
        learning_rate=warm.learning_rate,
        schedule="linear",
        warmup_steps=min(3, updates),
        loss_constant=1.0,
        max_grad_norm=1.0,
    )
    optimizer = make_optimizer(settings, updates)
    update, opt_state = make_update(optimizer), experiment.new_state(optimizer, lora)
    learner = Learner(
        experiment.model, experiment.base, supervised_loss, vocab_size=experiment.vocab_size, temperature=1.0
    )
    updated = 0.0
    with progress.phase(f"warm start on {len(rows)} trajectories, update", total=updates) as advance:
        for number, batch in enumerate(_batches(rows, warm.epochs, warm.rows_per_step, config.train.seed), start=1):
            started = time.monotonic()
            packed = pack(
                batch, pack_rows=config.learning.pack_rows, pack_tokens=config.learning.pack_tokens, skip_zero=False
            )
            actions = sum(row.action_tokens for row in batch)
            grads, stats = learner.gradient(lora, packed.batches, actions)
            lora, opt_state, done = update(grads, opt_state, lora)
            means = stats.means()
            updated += float(done["updated"])
            write(
                number,
                {
                    "nats_per_token": -means["logprob"],
                    "tokens": means["tokens"],
                    "grad_norm": float(done["grad_norm"]),
                    "learning_rate": float(done["learning_rate"]),
                    "updated": float(done["updated"]),
                    "seconds/warm start": time.monotonic() - started,
                },
            )
            advance()
            check()
    if not updated:
        raise UserError(
            f"the warm start taught nothing: in each of its {updates} updates the gradient was 0, or a number was not "
            "finite; see grad_norm in metrics.jsonl, or lower warm_start.learning_rate"
        )
    return lora


def _batches(rows: Sequence[TrainRow], epochs: int, size: int, seed: int) -> list[list[TrainRow]]:
    """Each epoch's rows in a seeded order, `size` to an update; the last of an epoch may be smaller."""
    batches = []
    for epoch in range(epochs):
        order = np.random.default_rng(seed_of(seed, "warm start order", epoch)).permutation(len(rows))
        batches += [[rows[i] for i in order[first : first + size]] for first in range(0, len(rows), size)]
    return batches
