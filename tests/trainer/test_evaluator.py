"""`--mode=eval`: who plays, which adapter, which tasks; stopped and resumed."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from jaxsearchrl import evaluator
from jaxsearchrl.config_checks import validate
from jaxsearchrl.config_tree import with_values
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.records import read_records, record_steps
from jaxsearchrl.telemetry.metrics_file import read_metrics
from tests import http_server


@pytest.fixture
def run(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    return tmp_path / "run"


def evaluate(config, folder, **settings):
    """The folder of an evaluation; keywords are settings, with __ for the dot."""
    config = with_values(config, {key.replace("__", "."): value for key, value in settings.items()})
    validate(config)
    evaluator.evaluate(config, str(folder))


def rewards(folder, split="eval", step=0):
    return [(r.task_id, r.attempt, r.reward, r.tokens) for r in read_records(folder, split, step)]


def test_an_evaluation_that_was_stopped_goes_on_and_ends_as_one_that_never_was(
    config, straight, run, with_letter_e, monkeypatch, capsys
):
    played, make = [], evaluator.to_record

    def counted(rollout, uid, *more, **about):
        played.append((about["split"], uid))
        if len(played) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return make(rollout, uid, *more, **about)

    monkeypatch.setattr(evaluator, "to_record", counted)
    evaluate(config, run)
    folder = run / "evaluations" / "step_000006"
    assert "the same command goes on" in capsys.readouterr().err
    assert not read_metrics(folder)
    evaluate(config, run)
    tasks, tries = config.eval.tasks, config.eval.tries
    assert len(played) == len(set(played)) == tasks * (tries + 1)
    for split in ("eval", "eval_greedy"):
        assert rewards(folder, split, 6) == rewards(straight, split, 6)
    assert not list((folder / "rollouts").glob("*/.*"))
    evaluate(config, run)
    assert len(played) == tasks * (tries + 1)
    assert "eval of step 6 is complete already" in capsys.readouterr().err


def test_all_adapters_of_a_run_are_played_and_are_the_runs_own(config, straight, run, with_letter_e):
    evaluate(config, run, eval__adapter="all", eval__greedy=False)
    folder = run / "evaluations" / "all"
    assert record_steps(folder, "eval") == [row["step"] for row in read_metrics(folder, "eval")] == [0, 3, 6]
    for step in (0, 6):  # the run itself has not evaluated step 3
        assert rewards(folder, step=step) == rewards(straight, step=step)
    assert rewards(folder, step=3) not in (rewards(folder, step=0), rewards(folder, step=6))
    evaluate(config, run, eval__adapter="base", eval__greedy=False)
    assert rewards(run / "evaluations" / "base") == rewards(straight)
    elsewhere = run.parent / "elsewhere"  # any folder of PEFT's form, in a new run folder
    evaluate(config, elsewhere, eval__adapter=str(run / "adapters" / "step_000003"), eval__greedy=False)
    assert rewards(elsewhere / "evaluations" / "step_000003", step=3) == rewards(folder, step=3)


def test_an_adapter_of_another_kind_is_refused(config, straight, tmp_path):
    other = {"eval.adapter": str(straight / "adapters" / "step_000003"), "lora.rank": 4}
    with pytest.raises(ConfigError, match=r"its rank is 2, but lora\.rank = 4; set that to it"):
        evaluator.evaluate(with_values(config, other), str(tmp_path))
    with pytest.raises(UserError, match="has no adapters; train first"):
        evaluator.evaluate(with_values(config, {"eval.adapter": "all"}), str(tmp_path))


def test_tasks_are_chosen_by_id_in_the_files_order(config, tmp_path):
    ids = [json.loads(line)["id"] for line in Path(config.task.eval_tasks).read_text().splitlines()]
    listed = tmp_path / "ids.txt"
    listed.write_text(f"{ids[3]}\n\n{ids[1]}\n{ids[0]}\n")
    evaluate(config, tmp_path, eval__task_ids=str(listed), eval__tasks=2, eval__player="expert")
    records = read_records(tmp_path / "evaluations" / "expert", "eval", 0)
    assert [record.task_id for record in records] == [ids[3], ids[1]]
    for text, words in (("nobody", "1: .*has no task 'nobody'"), (f"{ids[0]}\n" * 2, "2: .* twice"), ("", "no task")):
        listed.write_text(text)
        with pytest.raises(UserError, match=words):
            evaluate(config, tmp_path, eval__task_ids=str(listed), eval__player="expert")


def test_scripts_play_by_the_same_tools_once_a_task(config, tmp_path):
    shown = {}
    for player in ("expert", "question"):
        evaluate(config, tmp_path, eval__player=player, task__max_observation_tokens=160)
        folder = tmp_path / "evaluations" / player
        [row] = read_metrics(folder)
        assert (row["kind"], row["rate/finished"], row["episodes"]) == ("eval", 1.0, float(config.eval.tasks))
        assert "entropy" not in row
        assert row["score/f_beta"] > 0.3
        shown[player] = read_records(folder, "eval", 0)
    for record in shown["question"]:
        search, end = record.turns
        [call] = search.calls
        assert call.arguments["query"] == " ".join(record.query.split())
        assert record.curated == tuple(hit.id for hit in search.encountered)
        assert [call.name for call in end.calls] == ["curate", "finish"]
    assert len(shown["expert"][0].turns[0].calls) == len(shown["expert"][0].query.splitlines())


def test_what_is_not_evaluated_on_the_same_inputs_begins_anew(config, tmp_path, capsys):
    tasks = tmp_path / "tasks.jsonl"
    lines = Path(config.task.eval_tasks).read_text().splitlines(keepends=True)
    tasks.write_text("".join(lines[:2]))
    for changed in (False, True):
        evaluate(config, tmp_path, eval__player="expert", task__eval_tasks=str(tasks))
        assert ("begins anew" in capsys.readouterr().err) == changed
        [first, _] = read_records(tmp_path / "evaluations" / "expert", "eval", 0)
        assert first.task_id == json.loads(tasks.read_text().splitlines()[0])["id"]
        tasks.write_text("".join(lines[2:4]))


def test_an_endpoint_needs_no_weights_and_what_it_failed_is_played_again(config, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "RETRY_SECONDS", ())
    call = {"id": "x", "type": "function", "function": {"name": "finish", "arguments": "{}"}}
    good = http_server.ok({"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "stop"}]})
    with http_server.serving() as server:
        settings = {
            "eval__player": "endpoint",
            "eval__greedy": False,
            "endpoint__url": server.url.replace("/retrieve", "/v1"),
            "endpoint__model": "m",
            "model__tokenizer": config.model.path,
            "model__path": "",
            "sampling__slots": 1,
        }
        bad = http_server.raw(b"", 503)
        server.answers = [good, good, *[bad] * 3, good]  # the first is that of the check before
        with pytest.raises(UserError, match=r"eval of step 0: the infrastructure failed 75% of .*status 503"):
            evaluate(config, tmp_path, **settings, eval__tasks=2, eval__tries=2)
        folder = tmp_path / "evaluations" / "endpoint"
        assert read_metrics(folder) == []
        assert len(server.requests) == 5
        evaluate(config, tmp_path, **settings, eval__tasks=2, eval__tries=2)
        assert len(server.requests) == 5 + 1 + 3
    [row] = read_metrics(folder)
    assert (row["episodes"], row["infrastructure/failed"], row["rate/empty"]) == (4.0, 0.0, 1.0)
    assert "entropy" not in row
    assert {record.stop_reason for record in read_records(folder, "eval", 0)} == {"finish"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eval.player": "endpoint"}, r"endpoint\.url = '': an address like http://127.0.0.1:8000/v1 is wanted"),
        ({"eval.player": "endpoint", "endpoint.url": "http://h/v1"}, r"endpoint\.model is empty"),
        ({"eval.player": "endpoint", "endpoint.url": "http://a:b@h/v1"}, r"endpoint\.url: has a user or password"),
        ({"endpoint.model": "m"}, r"is not asked, since eval\.player = 'policy'"),
        ({"eval.player": "expert", "eval.adapter": "all"}, r"eval\.player = 'expert' has none"),
        ({"eval.adapter": "nowhere"}, r"eval\.adapter = 'nowhere': no such folder"),
    ],
)
def test_settings_that_cannot_work_name_the_key(config, settings, words):
    with pytest.raises(ConfigError, match=words):
        validate(with_values(config, settings))
