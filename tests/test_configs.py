"""Every config file is valid, and dry runs of them go through every part of a run."""

import json
import shutil
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxsearchrl import trainer
from jaxsearchrl.config_checks import validate
from jaxsearchrl.config_flags import load_config
from jaxsearchrl.dry_run import dry_run_config
from jaxsearchrl.errors import UserError
from jaxsearchrl.records import read_records
from jaxsearchrl.telemetry.metrics_file import read_metrics

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
# One for each family of tasks and chat format; in models and corpora, the rest's difference, dry runs are alike.
DRY_RUNS = ["demo", "demo_gsm8k", "search_r1_0.5b", "search_tools_4b", "sec_4b", "sec_gptoss20b"]


@pytest.fixture(scope="module", autouse=True)
def programs_are_compiled_once(tmp_path_factory):
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("xla")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        for name, value in values.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        if values is settings:
            yield


@pytest.fixture
def example_task(tmp_path, monkeypatch):
    """A copy of docs/example_task, whose config writes files beside itself, seen from the root."""
    monkeypatch.chdir(ROOT)
    ignored = shutil.ignore_patterns("made", "__pycache__")
    return Path(shutil.copytree(ROOT / "docs/example_task", tmp_path / "mine", ignore=ignored))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_is_valid(path):
    config = load_config(str(path))
    validate(config, check_files=False)
    assert config.name == path.stem


@pytest.mark.slow
@pytest.mark.parametrize("name", DRY_RUNS)
def test_its_dry_run_trains_evaluates_and_saves(name, tmp_path):
    config = dry_run_config(load_config(str(ROOT / f"configs/{name}.py")), tmp_path / "files")
    validate(config)
    trainer.train(config, str(tmp_path / "run"))
    rows = {(row["kind"], row["step"]): row for row in read_metrics(tmp_path / "run")}
    assert {("train", 1), ("train", 2), ("eval", 0), ("eval", 2)} <= rows.keys()
    # The learner is compiled in the first step that has something to learn.
    assert rows["train", 2]["compilations"] == 0 or rows["train", 1]["learn/skipped"] == 1.0
    assert rows["train", 1]["infrastructure/failed"] == 0
    assert len(read_records(tmp_path / "run", "eval", 2)) == 2 * config.eval.tries
    assert [path.name for path in sorted((tmp_path / "run/adapters").iterdir())][-1] == "step_000002"
    assert (tmp_path / "run/report.md").exists()


def test_the_example_of_a_task_of_ones_own_makes_its_files_from_notes(example_task):
    config = load_config(str(example_task / "config.py"))
    validate(config, check_files=False)
    corpus = (example_task / "made/corpus.jsonl").read_text()
    assert '"id": "kiln.md#Firing", "title": "The kiln: Firing"' in corpus
    stamp = Path(config.task.corpus).stat().st_mtime_ns
    assert load_config(str(example_task / "config.py")) == config
    assert Path(config.task.corpus).stat().st_mtime_ns == stamp
    assert len((example_task / "config.py").read_text().splitlines()) < 100


def test_the_example_leaves_nothing_of_a_note_out(example_task):
    (example_task / "notes/more").mkdir()
    (example_task / "notes/more/kiln.md").write_text(
        "# The other kiln\n\nIt is small.\n\n## Firing\nBy wood.\n## Empty\n"
    )
    (example_task / "notes/bare.md").write_text("No heading at all.")
    (example_task / "questions.jsonl").open("a").write("\n")
    load_config(str(example_task / "config.py"))
    made = [json.loads(line) for line in (example_task / "made/corpus.jsonl").read_text().splitlines()]
    assert len({row["id"] for row in made}) == len(made)
    assert {row["id"]: (row["title"], row["text"]) for row in made if row["id"].startswith(("bare", "more"))} == {
        "bare.md#": ("bare", "No heading at all."),
        "more/kiln.md#": ("The other kiln", "It is small."),
        "more/kiln.md#Firing": ("The other kiln: Firing", "By wood."),
    }
    (example_task / "questions.jsonl").open("a").write("{")
    with pytest.raises(UserError, match=r"questions\.jsonl, line 10: not JSON"):
        load_config(str(example_task / "config.py"))
