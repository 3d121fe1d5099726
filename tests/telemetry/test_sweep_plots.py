from jaxsearchrl.config import Config, TrainConfig
from jaxsearchrl.config_tree import to_json
from jaxsearchrl.telemetry.metrics_file import MetricsFile
from jaxsearchrl.telemetry.sweep_plots import read_runs, summary, write_sweep_plot


def make_run(root, name, groups, f1s):
    folder = root / name
    file = MetricsFile(folder)
    (folder / "config.json").write_text(to_json(Config(name="swept", train=TrainConfig(groups_per_step=groups))))
    for step, f1 in enumerate(f1s):
        if step:
            file.append(step, "train", {"reward": step / 8, "rate/nonempty": 0.5})
        file.append(step, "eval", {"score/f1": f1, "score/f1_low": f1 - 0.1, "score/f1_high": f1 + 0.1})


def test_runs_stand_by_value_against_the_prompts_that_they_saw(tmp_path):
    make_run(tmp_path, "groups_per_step=16", 16, [0.25, 0.5])
    make_run(tmp_path, "groups_per_step=8", 8, [0.25, 0.5, 0.375])
    eight, sixteen = runs = read_runs(tmp_path)
    assert (eight.name, sixteen.name) == ("groups_per_step=8", "groups_per_step=16")
    assert eight.series("train", "reward") == ([8, 16], [0.125, 0.25])
    assert sixteen.series("eval", "score/f1") == ([0, 16], [0.25, 0.5])
    assert summary(runs).splitlines() == [
        "| run | steps | prompts | training reward | f1 |",
        "|---|---|---|---|---|",
        "| groups_per_step=8 | 2 | 16 | 0.250 | 0.250 → 0.375 [0.275, 0.475] |",
        "| groups_per_step=16 | 1 | 16 | 0.125 | 0.250 → 0.500 [0.400, 0.600] |",
    ]
    write_sweep_plot(runs, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


def test_nothing_is_drawn_of_runs_without_numbers(tmp_path):
    make_run(tmp_path, "learning_rate=0.1", 8, [])
    write_sweep_plot(read_runs(tmp_path), tmp_path / "sweep.png")
    assert not (tmp_path / "sweep.png").exists()
