"""A tiny run with a reward that a random model can earn, in a process of its own that may be stopped on the way.

python tests/trainer/process.py train|eval CONFIG.json WORKDIR [SIGNAL EVENT STEP]

It may also be one of several (tests/processes.py).
"""

import os
import signal
import sys
from pathlib import Path

from jaxsearchrl import evaluator, experiment, hosts, trainer
from jaxsearchrl.config import Config
from jaxsearchrl.config_tree import from_json
from jaxsearchrl.experiment import Experiment
from jaxsearchrl.tasks.curated.environment import CuratedEnvironment
from jaxsearchrl.tasks.environment import Score


class LetterE(CuratedEnvironment):
    """The curated-set task with another reward: the share of the letter "e" in what the policy wrote."""

    said = ""

    def reset(self):
        self.said = ""
        return super().reset()

    def step(self, turn):
        answer = super().step(turn)
        self.said += turn.text
        return answer

    def score(self):
        score = super().score()
        share = self.said.count("e") / max(len(self.said), 1)
        return Score(share, {**score.parts, "f_beta": share}, score.outcome)


def letter_e(experiment, task, step=0):
    """In the place of `Experiment.environment`."""
    index, chat = experiment.family.index, experiment.chat
    return LetterE(task, index, index, experiment.config.task, chat.count_tokens)


def interrupting(write_records, split, step):
    """In the place of `trainer.write_records`: SIGTERM comes once a split's rollouts of a step are written."""

    def write(folder, written, at, records):
        write_records(folder, written, at, records)
        if (written, at) == (split, step):
            os.kill(os.getpid(), signal.SIGTERM)

    return write


def signalling(environment, number, step):
    """In the place of `Experiment.environment`: a signal comes when the first episode for a step begins."""
    came = []

    def begin(experiment, task, at=0):
        if at == step - 1 and not came:
            came.append(number)
            os.kill(os.getpid(), number)
        return environment(experiment, task, at)

    return begin


def dying(learn, step):
    """In the place of `trainer.learn`: SIGKILL comes at the update of a step."""

    def learn_or_die(learner, update, lora, opt_state, *more):
        if int(opt_state[1].count) == step - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return learn(learner, update, lora, opt_state, *more)

    return learn_or_die


def killing(rename, step):
    """In the place of `os.rename`: SIGKILL comes when a step's checkpoint is written and has not got its name yet."""

    def rename_or_die(source, target, *more, **options):
        if Path(target).name == str(step):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target, *more, **options)

    return rename_or_die


if __name__ == "__main__":
    mode, config_file, workdir, *stop = sys.argv[1:]
    Experiment.environment = letter_e
    if os.environ.get("JAX_PROCESS_ID", "0") != "0":
        experiment.read_adapter = None  # another host has not the first one's run folder
    if stop[:1] == ["SIGTERM"]:
        trainer.write_records = interrupting(trainer.write_records, stop[1], int(stop[2]))
    if stop[:2] == ["SIGKILL", "save"]:
        os.rename = killing(os.rename, int(stop[2]))
    if stop[:2] == ["SIGKILL", "update"]:
        trainer.learn = dying(trainer.learn, int(stop[2]))
    if stop[1:2] == ["rollouts"]:
        Experiment.environment = signalling(letter_e, getattr(signal, stop[0]), int(stop[2]))
    hosts.SILENCE = 10.0
    with hosts.joined():
        start = {"train": trainer.train, "eval": evaluator.evaluate}[mode]
        start(from_json(Config, Path(config_file).read_text(), config_file), workdir)
