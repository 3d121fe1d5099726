"""What a step does and what it leaves: learning, metrics, records, adapters, evaluations, the control run."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxsearchrl import dry_run, evaluator, trainer
from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.checkpoint import Checkpoints
from jaxsearchrl.config_tree import with_values
from jaxsearchrl.dry_run import dry_run_config
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.experiment import Experiment
from jaxsearchrl.export import export
from jaxsearchrl.models.architecture import adaptable
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.peft_adapter import read_adapter
from jaxsearchrl.models.tiny import write_tiny_checkpoint
from jaxsearchrl.records import read_records, record_steps
from jaxsearchrl.telemetry.metrics_file import read_metrics

LEARNT = {"loss", "grad_norm", "learning_rate", "ratio", "logprob_gap", "logprob_gap_max", "entropy", "action_tokens"}
COUNTED = {"rows", "rows_without_signal", "rows_without_actions", "skipped"}
ALWAYS = {
    "reward",
    "score/f_beta",
    "score/precision",
    "score/recall",
    "rate/empty",
    "rate/nonempty",
    "rate/finished",
    "rate/truncated",
    "groups/no_signal",
    "groups/all_good",
    "groups/all_bad",
    "entropy",
    "turns",
    "calls",
    "tokens/prompt",
    "tokens/sampled",
    "tokens/observation",
    "episode_seconds/p50",
    "episode_seconds/p95",
    "episode_seconds/max",
    "infrastructure/failed",
    "infrastructure/errors",
}


def adapter(folder, step):
    return (folder / "adapters" / f"step_{step:06d}" / "adapter_model.safetensors").read_bytes()


# --------------------------------------------------------------------------------------------------- an undisturbed run


def test_every_step_tells_its_numbers(straight):
    rows = read_metrics(straight, "train")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    wanted = ALWAYS | {f"learn/{name}" for name in LEARNT | COUNTED}
    wanted |= {"seconds/rollouts", "seconds/update", "speed/sampled_per_second", "speed/trained_per_second"}
    for row in rows:
        assert wanted | {"compilations"} <= row.keys()
        assert (row["learn/skipped"], row["episodes"]) == (0.0, 4.0)
        assert row["learn/rows"] + row["learn/rows_without_signal"] == 4.0
        assert row["learn/ratio"] == pytest.approx(1.0, abs=1e-4)
        assert row["learn/logprob_gap_max"] < 1e-4  # sampler and learner mean the same by a log-prob
        if row["learn/rows"] == 4.0:
            assert row["learn/action_tokens"] == 4 * row["tokens/sampled"]
        assert row["learn/learning_rate"] == pytest.approx(1e-3)
        assert row["learn/grad_norm"] > 0
        assert not [name for name in row if name.startswith("experts/") or "router" in name]
    assert any(row["learn/rows"] == 4.0 for row in rows)


@pytest.mark.slow
def test_a_model_with_experts_tells_their_load_and_how_far_routers_agree(tmp_path, config, train):
    """One layer of five experts of which a token takes two; nothing more is compiled for them after the first step."""
    write_tiny_checkpoint(tmp_path / "theirs", "qwen3_moe", vocab_size=64)
    sparse = dry_run_config(with_values(config, {"model.path": str(tmp_path / "theirs")}), tmp_path / "files")
    sparse = replace(config, model=sparse.model)
    train(tmp_path / "run", base=sparse, train__steps=2, eval__every=0, checkpoint__keep_best=0)
    rows = read_metrics(tmp_path / "run", "train")
    assert [row["compilations"] > 0 for row in rows] == [True, False]
    for row in rows:
        assert row["learn/rows"] > 0
        assert row["learn/router_disagreement"] < 0.02  # of an adapter that has not changed
        assert 1 < row["experts/load_max"] <= 5 / 2
        assert row["experts/unused"] in (0.0, 0.2, 0.4, 0.6)


def test_nothing_is_compiled_after_the_first_step(straight):
    counts = [row["compilations"] for row in read_metrics(straight, "train")]
    assert counts[0] > 0
    assert counts[1:] == [0.0] * 5


def test_each_epoch_asks_every_task_once(straight):
    asked = [[r.task_id for r in read_records(straight, "train", step)] for step in range(1, 7)]
    for tasks in asked:
        assert (tasks[0], tasks[2]) == (tasks[1], tasks[3])
        assert tasks[0] != tasks[2]
    first = [tasks[place] for tasks in asked[:4] for place in (0, 2)]
    assert sorted(first) == [f"q{number}" for number in range(8)]
    assert first[:4] != [tasks[place] for tasks in asked[4:] for place in (0, 2)]  # another order


def test_advantages_are_rewards_less_their_groups_mean(straight):
    for step in record_steps(straight, "train"):
        records = read_records(straight, "train", step)
        for a, b in ((0, 1), (2, 3)):
            mean = (records[a].reward + records[b].reward) / 2
            for record in (records[a], records[b]):
                assert record.advantage == pytest.approx(record.reward - mean, abs=1e-6)
                assert record.adapter == step - 1


def test_evaluations_are_of_the_same_tasks_each_time(straight, config):
    lines = Path(config.task.eval_tasks).read_text().splitlines()[: config.eval.tasks]
    ids = [json.loads(line)["id"] for line in lines]
    assert record_steps(straight, "eval") == record_steps(straight, "eval_greedy") == [0, 2, 4, 6]
    for step in (0, 2, 4, 6):
        sampled, greedy = read_records(straight, "eval", step), read_records(straight, "eval_greedy", step)
        assert [r.task_id for r in sampled] == [i for i in ids for _ in range(config.eval.tries)]
        assert [r.task_id for r in greedy] == ids
        for record in (*sampled, *greedy):
            assert (record.step, record.run) == (step, "tiny")
            assert record.advantage is None
            assert (record.reward, record.stop_reason) == (record.score_parts["f_beta"], "turns")
            assert len(record.turns) == 2
            assert record.tokens
            assert record.gold["facts"]
        [row] = [row for row in read_metrics(straight, "eval") if row["step"] == step]
        assert row["reward"] == pytest.approx(np.mean([r.reward for r in sampled]))
        assert row["reward_low"] <= row["reward"] <= row["reward_high"]
        assert {"score/f_beta_low", "score/f_beta_high", "best_of_n/f_beta", "score/recall"} <= row.keys()


def test_an_adapter_lies_beside_every_checkpoint_ever_taken(straight, config):
    arch = open_checkpoint(config.model.path).architecture
    assert sorted(path.name for path in (straight / "adapters").iterdir()) == [
        "step_000000",
        "step_000003",
        "step_000006",
    ]
    for step in (0, 3, 6):
        pairs, lora = read_adapter(straight / "adapters" / f"step_{step:06d}", arch)
        assert lora.rank == config.lora.rank
        assert len(pairs) == arch.layers * len(adaptable(arch))
        assert all(np.any(b) == (step > 0) for _, b in pairs.values())


def test_the_best_checkpoint_is_that_of_the_best_evaluation(straight):
    """Step 3 has no evaluation of its own: it is kept for being late, not for being good."""
    f_beta = {row["step"]: row["score/f_beta"] for row in read_metrics(straight, "eval")}
    with Checkpoints(straight / "checkpoints") as checkpoints:
        assert checkpoints.steps() == sorted({3, 6, max((0, 6), key=lambda step: (f_beta[step], step))})


def test_the_report_is_written(straight):
    assert "F-beta after step 6" in (straight / "report.md").read_text()


# ------------------------------------------------------------------------------------------------- evaluation by itself


def test_an_evaluation_by_itself_repeats_the_runs_own_and_leaves_it_alone(config, straight, with_letter_e, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(straight, run)
    for _ in range(2):  # again, in the same place
        evaluator.evaluate(config, str(run))
    assert (run / "metrics.jsonl").read_text() == (straight / "metrics.jsonl").read_text()
    [again] = read_metrics(run / "evaluations" / "step_000006", "eval")
    [before] = [row for row in read_metrics(straight, "eval") if row["step"] == 6]
    assert again.keys() == before.keys() - {"seconds/eval"}
    assert all(again[key] == before[key] for key in again if not key.startswith("episode_seconds/"))
    more = with_values(config, {"eval.tasks": 4, "eval.greedy": False})
    evaluator.evaluate(more, str(run))
    [row] = read_metrics(run / "evaluations" / "step_000006_2")
    assert (row["kind"], row["groups/total"]) == ("eval", 4.0)
    test = tmp_path / "test.jsonl"  # other questions than those that a run was watched on
    test.write_text("".join(Path(config.task.train_tasks).read_text().splitlines(keepends=True)[:3]))
    evaluator.evaluate(with_values(more, {"task.eval_tasks": str(test), "task.train_tasks": ""}), str(run))
    [row] = read_metrics(run / "evaluations" / "step_000006_3")
    assert row["groups/total"] == 3.0
    assert {folder.name for folder in (run / "evaluations").iterdir()} == {f"step_000006{x}" for x in ("", "_2", "_3")}
    [first] = read_metrics(run / "evaluations" / "step_000006", "eval")
    assert first == again


def test_the_newest_adapter_is_exported_as_a_model(config, straight, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(straight, run)
    export(config, str(run))
    export(config, str(run))  # again, in the same place
    [folder] = (run / "merged").iterdir()
    assert folder.name == "step_000006"
    merged, base = open_checkpoint(folder), open_checkpoint(config.model.path)
    changed = {name for name in base.names() if not np.array_equal(base.tensor(name), merged.tensor(name))}
    assert len(changed) == 7 * base.architecture.layers
    assert load_tokenizer(folder).encode("owl") == load_tokenizer(config.model.path).encode("owl")
    other = with_values(config, {"model.path": str(folder)})
    with pytest.raises(ConfigError, match=r"belongs to a run with other settings.*\n  model\.path"):
        export(other, str(run))
    with pytest.raises(UserError, match="has no adapter to export"):
        export(config, str(tmp_path / "new"))


def test_the_base_model_can_be_evaluated_in_an_empty_folder(config, straight, with_letter_e, tmp_path):
    evaluator.evaluate(config, str(tmp_path))
    [row] = read_metrics(tmp_path / "evaluations" / "base", "eval")
    [start] = [row for row in read_metrics(straight, "eval") if row["step"] == 0]
    assert row["reward"] == start["reward"]
    assert not (tmp_path / "config.json").exists()


# ------------------------------------------------------------------------------------------------------------- one step


def test_a_step_without_signal_changes_nothing(train, parts, state, tmp_path, monkeypatch):
    """All rewards are equal: neither weights nor moments nor the count move."""
    plain = parts["CuratedEnvironment"].score
    monkeypatch.setattr(parts["LetterE"], "score", lambda self: replace(plain(self), reward=-0.2))
    train(tmp_path, train__steps=2, eval__every=1, checkpoint__every=1)
    rows = read_metrics(tmp_path, "train")
    assert [row["learn/skipped"] for row in rows] == [1.0, 1.0]
    assert [row["groups/no_signal"] for row in rows] == [1.0, 1.0]
    assert [row["learn/rows_without_signal"] for row in rows] == [4.0, 4.0]
    assert adapter(tmp_path, 0) == adapter(tmp_path, 1) == adapter(tmp_path, 2)
    moments = {name: leaf for name, leaf in state(tmp_path).items() if name.startswith("['opt_state']")}
    assert moments
    assert all(not np.any(leaf) for leaf in moments.values())
    # The evaluations of one and the same policy are the same, token by token.
    for split in ("eval", "eval_greedy"):
        said = [[record.tokens for record in read_records(tmp_path, split, step)] for step in (0, 1, 2)]
        assert said[0] == said[1] == said[2]


def test_after_a_step_with_signal_one_without_changes_nothing_either(train, parts, tmp_path, monkeypatch):
    """Not even through Adam's memory of the first."""
    train(tmp_path, train__steps=1, checkpoint__every=1)
    monkeypatch.setattr(parts["LetterE"], "score", lambda self: parts["Score"](0.5, {"f_beta": 0.5, "empty": 0.0}))
    train(tmp_path, train__steps=2, checkpoint__every=1, eval__every=0, checkpoint__keep_best=0)
    first, second = read_metrics(tmp_path, "train")
    assert (first["learn/skipped"], second["learn/skipped"]) == (0.0, 1.0)
    assert second["groups/all_good"] == 1.0
    assert adapter(tmp_path, 0) != adapter(tmp_path, 1) == adapter(tmp_path, 2)
    assert "F-beta after step 1" in (tmp_path / "report.md").read_text()  # the last that was evaluated


def test_the_policy_learns_what_is_rewarded(config, train, parts, tmp_path, monkeypatch):
    """From bytes at random to ASCII alone: signs, the order of rows and rewards, and the wiring are right."""

    def ascii_share(environment):
        said = environment.said
        share = sum(character.isascii() for character in said) / max(len(said), 1)
        return parts["Score"](share, {"f_beta": share, "empty": 0.0})

    monkeypatch.setattr(parts["LetterE"], "score", ascii_share)
    monkeypatch.setattr(dry_run, "VOCABULARY", 259)  # bytes and control tokens
    monkeypatch.setattr(dry_run, "_curated_turns", lambda documents, write_call: [])
    of_bytes = dry_run.dry_run_config(config, tmp_path / "files")
    settings = {
        "sampling.capacity": 1024,
        "sampling.slots": 16,
        "sampling.max_turn_tokens": 8,
        "task.max_turns": 1,
        "lora.rank": 4,
        "lora.alpha": 8.0,
        "learning.learning_rate": 0.02,
        "learning.pack_tokens": 1024,
        "train.steps": 14,
        "train.epochs": 14,
        "train.groups_per_step": 1,
        "train.group_size": 16,
        "eval.every": 0,
        "checkpoint.every": 14,
        "checkpoint.keep_best": 0,
    }
    train(tmp_path / "run", base=with_values(of_bytes, settings))
    rewards = [row["reward"] for row in read_metrics(tmp_path / "run", "train")]
    assert max(rewards[:2]) < 0.6
    assert min(rewards[-2:]) > 0.8


def test_the_control_run_deals_the_same_advantages_to_others(train, straight, tmp_path):
    train(tmp_path, train__steps=1, eval__every=0, checkpoint__keep_best=0, learning__shuffle_advantages=True)
    control, usual = read_records(tmp_path, "train", 1), read_records(straight, "train", 1)
    assert [r.tokens for r in control] == [r.tokens for r in usual]
    assert [r.reward for r in control] == [r.reward for r in usual]
    assert Counter(r.advantage for r in control) == Counter(r.advantage for r in usual)
    assert [r.advantage for r in control] != [r.advantage for r in usual]
    assert adapter(tmp_path, 1) != (straight / "adapters" / "step_000003" / "adapter_model.safetensors").read_bytes()


# --------------------------------------------------------------------------------------------- what the world may break


def failing(letter_e, *broken):
    """Environments of which the ones made at places `broken` raise."""
    made = []

    def new(experiment, task, step=0):
        environment = letter_e(experiment, task)
        if len(made) in broken:
            environment.step = lambda turn: {}["question"]
        made.append(environment)
        return environment

    return new


def test_a_failed_episode_is_counted_and_left_out(train, parts, straight, tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "environment", failing(parts["letter_e"], 1))
    train(tmp_path, train__steps=1, train__group_size=2, eval__every=0, checkpoint__keep_best=0)
    [row] = read_metrics(tmp_path, "train")
    assert (row["infrastructure/failed"], row["infrastructure/failed_share"]) == (1.0, 0.25)
    records = read_records(tmp_path, "train", 1)
    assert (records[1].reward, records[1].advantage, records[1].stop_reason) == (None, None, "infrastructure")
    assert records[1].infrastructure_errors == ("KeyError: 'question'",)
    assert records[0].advantage == 0.0  # alone in its group: nothing to compare with
    assert row["learn/rows"] == 2.0
    usual = read_records(straight, "train", 1)
    assert [r.reward for r in records[2:]] == [r.reward for r in usual[2:]]
    assert row["reward"] == pytest.approx(np.mean([r.reward for r in usual if r.uid != 1]))


def test_too_many_failures_stop_the_run_and_say_why(train, parts, tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "environment", failing(parts["letter_e"], 0, 1, 3))
    with pytest.raises(
        UserError, match=r"step 1: the infrastructure failed 75% .*max_infrastructure_share.*'question'"
    ):
        train(tmp_path, train__steps=2, eval__every=0, checkpoint__keep_best=0)
    assert read_metrics(tmp_path, "train") == []
    assert record_steps(tmp_path, "train") == [1]  # what failed can be looked at


def test_an_evaluation_that_lost_a_task_is_still_reported(config, train, parts, tmp_path, monkeypatch):
    """The report compares what was scored in both evaluations."""
    tasks = config.eval.tasks
    monkeypatch.setattr(Experiment, "environment", failing(parts["letter_e"], 0))
    lenient = {"train__max_infrastructure_share": 0.5, "eval__every": 1, "eval__tries": 1, "eval__greedy": False}
    train(tmp_path, train__steps=1, **lenient)
    report = (tmp_path / "report.md").read_text()
    assert f"too few tasks: {tasks - 1}, {2 * (tasks - 1)} tries" in report
    assert "F-beta after step 1: " in report


def test_an_evaluation_that_the_infrastructure_failed_stops_the_run(train, parts, tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "environment", failing(parts["letter_e"], *range(100)))
    with pytest.raises(UserError, match=r"eval after step 0: the infrastructure failed 100% .*'question'"):
        train(tmp_path, train__steps=1, eval__every=1)
    assert read_metrics(tmp_path, "eval") == []


# ------------------------------------------------------------------------------------------------------ what is refused


def test_a_question_that_leaves_no_room_for_a_turn_is_named(config, tmp_path):
    tasks = Path(config.task.train_tasks).read_text().splitlines()
    tasks[3] = tasks[3].replace('"query": "', '"query": "' + "very " * 400)
    long = tmp_path / "train.jsonl"
    long.write_text("\n".join(tasks))
    with pytest.raises(ConfigError, match=r'task "q3": its prompt has \d+ tokens.*sampling\.capacity = 768'):
        trainer.train(with_values(config, {"task.train_tasks": str(long)}), str(tmp_path / "run"))


def test_the_tokenizer_of_a_larger_model_is_refused(config, tmp_path):
    arch = open_checkpoint(config.model.path).architecture
    small = tmp_path / "model"
    shutil.copytree(config.model.path, small)
    tokenizer = json.loads((small / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        {**tokenizer["added_tokens"][-1], "id": arch.vocab_size, "content": "<|one too many|>"}
    )
    (small / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=rf"ids up to {arch.vocab_size}, but the model's embedding ends at"):
        trainer.train(with_values(config, {"model.tokenizer": str(small)}), str(tmp_path / "run"))
