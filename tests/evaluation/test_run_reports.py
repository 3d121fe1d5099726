"""Reports and the command line over run folders that were really written."""

import json
from dataclasses import replace

import pytest

from jaxsearchrl.config import Config, CuratedConfig
from jaxsearchrl.config_tree import to_json
from jaxsearchrl.errors import UserError
from jaxsearchrl.evaluation.__main__ import main
from jaxsearchrl.evaluation.run_data import labelled, read_run
from jaxsearchrl.evaluation.sections import verdict
from jaxsearchrl.evaluation.statistics import Estimate
from jaxsearchrl.records import read_records, write_records


def test_a_report_says_what_a_run_has_shown(write_run, tmp_path, capsys):
    assert main(["report", str(write_run("better")), "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "out" / name) for name in ("report.html", "report.md")]
    text = (tmp_path / "out" / "report.md").read_text()
    # P 1, R 1/2 gives F4 17 · 0.5 / 16.5 = 0.515 for all at step 0, and 1 at step 4.
    assert "| F-beta | 0.515 (95 % [0.515, 0.515], too few tasks: 3, 6 tries) | 1.000 (95 % [1.000, " in text
    assert "|  | too few tasks |" in text
    assert "tries that are all alike, say nothing of the noise" in text
    assert "Hardly: 3 of 3 tasks are solved in every try." in text
    assert "| ignored evidence | 6 | 0 |" in text
    assert "| shown but not curated | 6 | 0 |" in text
    assert "| better | truncation | 4 to 4 | rate/truncated is 0.9 (> 0.2) |" in text
    assert "| step | pass@1 | pass@2 | pass^2 |" in text
    assert "| 4 | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] | 1.000 [1.000, 1.000] |" in text
    assert "better, worst: task a, reward 1.000, complete:" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert page.count("<svg") == page.count("<figure>") > 5


def test_runs_stand_side_by_side_and_noise_is_called_noise(write_run, tmp_path, capsys):
    folders = [str(write_run("one", tasks="abcdef")), str(write_run("two", good=False, tasks="abcdef"))]
    assert main(["report", *folders, "--output", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Settings that differ: name." in text
    assert "| two | F-beta | -0.242 (95 % [-0.242, -0.242], 6 tasks, 24 tries) | down |" in text
    assert "| two | precision | 0.000 (95 % [0.000, 0.000], 6 tasks, 24 tries) | inside the noise |" in text


def test_runs_on_other_tasks_are_not_compared(write_run, tmp_path, capsys):
    folders = [str(write_run("one")), str(write_run("two", tasks=("a", "b", "x")))]
    assert main(["report", *folders, "--output", str(tmp_path / "out")]) == 0
    assert "two and one cannot be compared: 2 tasks are in one" in (tmp_path / "out" / "report.md").read_text()


def test_an_evaluation_on_other_tasks_is_no_before(write_run, tmp_path, play, calls):
    folder = write_run("one")
    write_records(folder, "eval", 0, [play(CuratedConfig(max_turns=3), [calls.finish], task_id="z")])
    assert main(["report", str(folder), "--output", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Step 0 was evaluated on other tasks: what the run has changed cannot be said." in text
    assert "| measure | after step 4 |" in text


def test_verdicts_in_words():
    assert verdict(Estimate(0.1, 0.01, 0.2, 9, 18)) == "up"
    assert verdict(Estimate(-0.1, -0.2, -0.01, 9, 18)) == "down"
    assert verdict(Estimate(0.1, -0.01, 0.2, 9, 18)) == "inside the noise"
    assert verdict(Estimate(0.1, 0.01, 0.2, 5, 10)) == "too few tasks"
    assert verdict(Estimate(0.1, None, None, 1, 2)) == verdict(None) == "too few tasks"


def test_rewards_can_be_tried_on_the_command_line(write_run, capsys):
    folder = str(write_run("two", good=False))
    assert main(["rescore", folder, "--config.task.beta=1", "--config.task.document_cost=0.5"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    # F1 with half a point per document: both 1 - 1, the one 2/3 - 0.5. Before: 1 and 0.515.
    assert row.startswith("| 4 | 0.758 | 0.083 | 0 of 3 | none | none |")
    assert row.endswith("| 100% | -1.000 | -1.000 |")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rescore"], "say what to change"),
        (["rescore", "--config.task.bta=1"], "unknown key task.bta; the nearest valid key is task.beta"),
        (
            ["rescore", "--config.train.steps=1"],
            "train.steps: stored rollouts can be looked at under other settings of",
        ),
        (["rescore", "--config.task.beta=x"], "a finite number is wanted"),
        (["rescore", "--config.task.beta=1", "--split=none"], "has no rollouts of 'none'"),
        (["report", "--config.task.beta=1"], "only `rescore` takes settings"),
    ],
)
def test_a_wrong_command_line_is_an_error_that_names_the_fix(write_run, capsys, arguments, words):
    command, *options = arguments
    assert main([command, str(write_run("one")), *options]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(tmp_path, write_run):
    with pytest.raises(UserError, match=r"no config\.json"):
        read_run(tmp_path)
    (tmp_path / "config.json").write_text(to_json(Config()))
    with pytest.raises(UserError, match="neither metrics nor evaluated episodes"):
        read_run(tmp_path)
    folder = str(write_run("one"))
    with pytest.raises(UserError, match="named twice"):
        labelled([folder, folder])


def test_retrieval_opens_the_runs_own_corpus(write_run, tmp_path, capsys, play, calls):
    folder = write_run("one")
    config = json.loads((folder / "config.json").read_text())
    config["task"]["corpus"] = str(tmp_path / "corpus.jsonl")
    rows = [
        {"id": "mars", "title": "Mars", "text": "two moons"},
        {"id": "owl", "title": "Owl", "text": "turns its head"},
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.json").write_text(json.dumps(config))
    records = [*read_records(folder, "eval", 4), play(CuratedConfig(max_turns=3), [calls.finish], task_id="d", step=4)]
    records += [replace(records[0], reward=None)]  # the infrastructure failed it
    write_records(folder, "eval", 4, records)
    assert main(["retrieval", str(folder), "-k", "1"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "step 0: 6 of 6 scored episodes searched, of 3 tasks",
        "  recall@1 of the policy's queries     1.000 (95 % [1.000, 1.000])",
        "  recall@1 of the raw question         0.500 (95 % [0.500, 0.500])",
        "  the raw question, as many documents  1.000 (95 % [1.000, 1.000])",
        "  the queries minus that               0.000 (95 % [0.000, 0.000])",
        "  facts shown but not curated              6",
        "step 4: 6 of 7 scored episodes searched, of 3 tasks",
        "  recall@1 of the policy's queries     1.000 (95 % [1.000, 1.000])",
        "  recall@1 of the raw question         0.500 (95 % [0.500, 0.500])",
        "  the raw question, as many documents  1.000 (95 % [1.000, 1.000])",
        "  the queries minus that               0.000 (95 % [0.000, 0.000])",
        "  facts never retrieved                    2",
    ]


def test_cost_by_hand_of_rows_with_and_without_seconds(write_run, tmp_path):
    """Four steps of 6 episodes with 100 tokens each; two have seconds, and no evaluation has."""
    run = write_run("run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["kind"] == "train" and row["step"] > 2:
            row |= {"seconds/rollouts": 400.0, "seconds/update": 500.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["report", str(run), "--output", str(tmp_path / "out"), "--price", "4"]) == 0
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| run | 4 | 24 |  | 800 | 1000 |  | 2400 | 1.5 | 0.50 | 2.00 |" in text
