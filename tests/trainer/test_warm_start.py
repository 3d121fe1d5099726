"""The supervised start: what is imitated, that it is learnt, and that RL goes on from it."""

import json
import os
import signal
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxsearchrl import trainer
from jaxsearchrl.config_tree import with_values
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.evaluator import evaluate
from jaxsearchrl.experiment import load_experiment
from jaxsearchrl.learning.learner import Learner
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.records import read_records, records_path, write_records
from jaxsearchrl.tasks.curated.data import load_tasks
from jaxsearchrl.tasks.curated.demonstrations import FINISH, Demonstration, to_row
from jaxsearchrl.telemetry.metrics_file import read_metrics
from jaxsearchrl.telemetry.progress import Progress
from jaxsearchrl.warm_start import examples

SETTINGS = {
    "warm_start.trajectories": 6,
    "warm_start.rows_per_step": 4,
    "warm_start.epochs": 5,
    "warm_start.learning_rate": 1e-2,
    "train.steps": 1,
    "eval.every": 0,
    "checkpoint.keep_best": 0,
}


@pytest.fixture(scope="module")
def settings(config):
    return with_values(config, SETTINGS)


@pytest.fixture(scope="module")
def warm(settings, tmp_path_factory):
    """The folder of `--mode=sft`."""
    folder = tmp_path_factory.mktemp("warm")
    trainer.sft(settings, str(folder))
    return folder


def rows(folder):
    """Of the warm start, without times."""
    found = [row for row in read_metrics(folder) if row["kind"].startswith("warm_start/")]
    return [{key: value for key, value in row.items() if not key.startswith("seconds/")} for row in found]


def adapter(folder):
    return (folder / "adapters" / "step_000000" / "adapter_model.safetensors").read_bytes()


def test_the_tasks_rule_is_imitated_on_training_tasks(warm):
    records = read_records(warm, "warm_start", 0)
    assert len({record.task_id for record in records}) == 6
    assert {record.task_id for record in records} <= {f"q{number}" for number in range(8)}
    for record in records:
        assert record.stop_reason == "finish"
        assert [call.name for call in record.turns[-1].calls] == ["curate", "finish"]


def test_its_words_become_likelier(warm):
    """Ten updates of four and two rows: the first sees a random model, the last knows much of it."""
    nats = [row["nats_per_token"] for row in rows(warm)]
    assert len(nats) == 10
    assert nats[0] > 6
    assert nats[-1] < 0.7 * nats[0]


def test_each_epoch_trains_every_action_token_once(warm):
    actions = sum(record.span_tokens("sampled") for record in read_records(warm, "warm_start", 0))
    tokens = [row["tokens"] for row in rows(warm)]
    assert [tokens[i] + tokens[i + 1] for i in range(0, 10, 2)] == [actions] * 5
    assert len(set(tokens[::2])) > 1  # in another order each time


def test_the_rate_rises_and_falls(warm):
    rates = [row["learning_rate"] for row in rows(warm)]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] > 0
    assert [row["updated"] for row in rows(warm)] == [1.0] * 10


def test_recorded_trajectories_teach_the_same_as_the_rule_that_made_them(settings, warm, tmp_path):
    records = {"warm_start.records": str(records_path(warm, "warm_start", 0))}
    trainer.sft(with_values(settings, records), str(tmp_path))
    assert adapter(tmp_path) == adapter(warm)


def written(path, records, tasks):
    """A file of demonstrations that do what was done in these records."""
    turns = {
        record.task_id: tuple(
            AssistantTurn(calls=tuple(ToolCall(call.name, call.arguments) for call in turn.calls))
            for turn in record.turns
        )
        for record in records
    }
    rows = [to_row(Demonstration(task, turns.get(task.id, (FINISH,)))) for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"warm_start.demonstrations": str(path)}


def test_demonstrations_are_played_here_and_teach_the_same_as_what_they_repeat(settings, warm, tmp_path, caplog):
    tasks = load_tasks(settings.task.train_tasks)
    demonstrations = written(tmp_path / "d.jsonl", read_records(warm, "warm_start", 0), tasks)
    trainer.sft(with_values(settings, demonstrations), str(tmp_path / "run"))
    assert adapter(tmp_path / "run") == adapter(warm)
    # the two tasks that were not among the six are not done as well, and come last
    everything = with_values(settings, {**demonstrations, "warm_start.trajectories": 99, "warm_start.epochs": 1})
    assert len(examples(load_experiment(everything, Progress()))) == 6
    assert "demonstrations that are not imitated: nothing curated 2" in caplog.text


def test_demonstrations_that_do_nothing_here_are_refused(settings, tmp_path):
    demonstrations = written(tmp_path / "d.jsonl", [], load_tasks(settings.task.train_tasks))
    experiment = load_experiment(with_values(settings, demonstrations), Progress())
    with pytest.raises(UserError, match=r"warm_start\.demonstrations: none of them ends by finish with something"):
        examples(experiment)


def test_rl_goes_on_from_it_and_does_not_repeat_it(settings, warm, with_letter_e):
    before, warm_rows = adapter(warm), rows(warm)
    with pytest.raises(UserError, match="warm-started already"):
        trainer.sft(settings, str(warm))
    trainer.train(settings, str(warm))
    assert adapter(warm) == before
    assert rows(warm) == warm_rows
    [row] = read_metrics(warm, "train")
    assert row["learn/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert row["entropy"] < warm_rows[0]["nats_per_token"]  # the policy that sampled is the warm one


def test_rl_from_the_exported_adapter_is_rl_from_the_warm_start(settings, warm, with_letter_e, tmp_path):
    if not read_metrics(warm, "train"):
        trainer.train(settings, str(warm))
    start = {"lora.start": str(warm / "adapters" / "step_000000"), "warm_start.trajectories": 0}
    trainer.train(with_values(settings, start), str(tmp_path))
    for file in ("adapters/step_000001/adapter_model.safetensors", "adapters/step_000001/adapter_config.json"):
        assert (tmp_path / file).read_bytes() == (warm / file).read_bytes()
    assert not rows(tmp_path)


def test_an_adapter_of_other_settings_is_refused(settings, warm, tmp_path):
    start = {"lora.start": str(warm / "adapters" / "step_000000"), "lora.rank": 3}
    with pytest.raises(ConfigError, match=r"step_000000: its rank is 2, but lora\.rank = 3; set that to it"):
        trainer.train(with_values(settings, start), str(tmp_path))


def test_an_adapter_to_start_with_is_evaluated_under_its_own_name(settings, warm, tmp_path):
    start = {"lora.start": str(warm / "adapters" / "step_000000"), "eval.every": 1}
    evaluate(with_values(settings, start), str(tmp_path))
    assert [path.name for path in (tmp_path / "evaluations").iterdir()] == ["start"]


@pytest.mark.parametrize("mode", [trainer.sft, trainer.train])
def test_sigterm_ends_it_after_the_update_at_work_and_it_begins_again(settings, warm, tmp_path, monkeypatch, mode):
    write = trainer.MetricWriters.write

    def write_and_stop(self, step, kind, metrics):
        write(self, step, kind, metrics)
        if kind == "warm_start/2":
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.MetricWriters, "write", write_and_stop)
        mode(settings, str(tmp_path))
    assert len(rows(tmp_path)) == 2
    assert not list((tmp_path / "checkpoints").glob("*"))  # a half-learnt adapter is nothing to go on from
    trainer.sft(settings, str(tmp_path))
    assert rows(tmp_path) == rows(warm)
    assert adapter(tmp_path) == adapter(warm)


def test_a_warm_start_of_nothing_is_refused(config, settings, tmp_path):
    with pytest.raises(UserError, match=r"warm_start\.trajectories is 0"):
        trainer.sft(config, str(tmp_path / "none"))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(UserError, match="no trajectory with a turn"):
        trainer.sft(with_values(settings, {"warm_start.records": str(empty)}), str(tmp_path / "empty"))


def test_a_warm_start_that_updates_nothing_is_refused(settings, tmp_path, monkeypatch):
    plain = Learner.gradient

    def overflowing(learner, *arguments):
        grads, stats = plain(learner, *arguments)
        return jax.tree.map(lambda grad: grad * jnp.inf, grads), stats

    monkeypatch.setattr(Learner, "gradient", overflowing)
    with pytest.raises(UserError, match=r"taught nothing: in each of its 2 updates"):
        trainer.sft(with_values(settings, {"warm_start.epochs": 1}), str(tmp_path))
    assert [row["updated"] for row in rows(tmp_path)] == [0.0, 0.0]
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_a_record_that_is_too_long_is_named_before_the_first_update(settings, warm, tmp_path):
    records = read_records(warm, "warm_start", 0)
    lengths = [len(record.tokens) for record in records]
    long = lengths.index(max(lengths))
    changes = {
        "warm_start.records": str(records_path(warm, "warm_start", 0)),
        "warm_start.rows_per_step": 1,
        "learning.pack_tokens": max(lengths) - 1,
    }
    named = rf"record {long + 1} \(task {records[long].task_id}\) has {max(lengths)} tokens"
    with pytest.raises(UserError, match=named):
        trainer.sft(with_values(settings, changes), str(tmp_path))
    assert rows(tmp_path) == []


def test_records_of_another_tokenizer_are_refused(settings, warm, tmp_path):
    records = read_records(warm, "warm_start", 0)
    strange = replace(records[1], tokens=(*records[1].tokens[:-1], 10**6))
    write_records(tmp_path, "warm_start", 0, [records[0], strange])
    other = with_values(settings, {"warm_start.records": str(records_path(tmp_path, "warm_start", 0))})
    with pytest.raises(UserError, match=r"record 2 \(task .*\) has the token id 1000000.*another tokenizer"):
        trainer.sft(other, str(tmp_path / "run"))
