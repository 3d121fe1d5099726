"""The documents name files, tests, settings, metrics and floors; all of them must exist, and the floors must hold."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from jaxsearchrl.config import Config, CuratedConfig, SearchR1Config, SearchToolsConfig, TaskConfig
from jaxsearchrl.config_tree import leaf_types
from jaxsearchrl.evaluation.evaluate import summarise
from jaxsearchrl.messages import AssistantTurn
from jaxsearchrl.records import CallRecord, RolloutRecord, TurnRecord
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.sweep import run_names
from jaxsearchrl.tasks.curated.data import Fact
from jaxsearchrl.tasks.curated.family import CuratedFamily
from jaxsearchrl.tasks.curated.reward import Counters
from jaxsearchrl.tasks.curated.reward import score as curated_score
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.gsm8k.family import GSM8KFamily
from jaxsearchrl.tasks.gsm8k.reward import score as gsm8k_score
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_r1.family import SearchR1Family
from jaxsearchrl.tasks.search_r1.reward import score as search_r1_score
from jaxsearchrl.tasks.search_tools.family import SearchToolsFamily
from jaxsearchrl.tasks.search_tools.reward import score as search_tools_score
from jaxsearchrl.telemetry.metrics import expert_metrics, rollout_metrics
from jaxsearchrl.trajectory import Span

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxsearchrl"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KEYS = {key for family in get_args(TaskConfig) for key in leaf_types(Config(task=family()))}
SECTIONS = {key.split(".")[0] for key in KEYS if "." in key}


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request) -> Path:
    return request.param


def quoted(text: str) -> list[str]:
    """What stands in backticks within a line."""
    return re.findall(r"`([^`\n]+)`", text)


def test_links_lead_somewhere(document):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text())
    missing = [link for link in links if not (document.parent / link).exists()]
    assert not missing


def test_named_files_exist(document):
    names = [word for word in quoted(document.read_text()) if re.fullmatch(r"[\w/]+\.(py|md)|\w+(/\w+)*/", word)]
    places = (ROOT, PACKAGE, ROOT / "docs")
    missing = [name for name in names if not any((place / name).exists() for place in places)]
    made = r"(runs|adapters|sweeps|evaluations|plots|rollouts|tensorboard)/"
    assert not [name for name in missing if not re.match(made, name)]


def test_named_tests_exist(document):
    names = [word for word in quoted(document.read_text()) if re.fullmatch(r"test_\w+", word)]
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name in names if f"def {name}(" not in sources]


def test_named_settings_exist(document):
    text = document.read_text()
    named = re.findall(r"--config\.([\w.]+)", text)
    named += [match[1] for word in quoted(text) if (match := re.match(r"(\w+\.\w+)(=|$)", word))]
    files = {"py", "md", "json", "jsonl", "txt", "gguf", "index", "lock"}
    named = [key for key in named if key.split(".")[0] in SECTIONS and key.split(".")[-1] not in files]
    assert not [key for key in named if key not in KEYS and key != "section.key"]


def sweeps() -> list[list[str]]:
    """Every documented sweep, as its arguments."""
    lines = "\n".join(path.read_text().replace("\\\n", " ") for path in DOCUMENTS).splitlines()
    return [line.split()[3:] for line in lines if line.startswith("    python -m jaxsearchrl.sweep ")]


@pytest.mark.parametrize("arguments", sweeps(), ids=" ".join)
def test_documented_sweeps_are_valid(arguments):
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    overrides = [(key.removeprefix("config."), text) for key, text in flags.items() if key.startswith("config.")]
    values = flags["values"].split(",")
    assert len(run_names(str(ROOT / flags["config"]), flags["key"], values, overrides)) == len(values)


def documented_metrics() -> set[str]:
    tables = (ROOT / "docs/formats.md").read_text().split("### metrics.jsonl")[1].split("### Rollout records")[0]
    cells = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in quoted(cell) if not name.startswith("…")}


def scores() -> list[tuple[Score, Sequence[str]]]:
    """A score of each family, and what evaluations measure of it."""
    fact = Fact("f", ("a",), is_final_answer=True)
    question = Question("q", "?", ("1",))
    return [
        (curated_score(["a"], ["a"], [fact], CuratedConfig(), Counters(stop_reason="finish")), CuratedFamily.measures),
        (search_r1_score(question, "1", [], [], 0, 0, SearchR1Config(), 0.0), SearchR1Family.measures),
        (search_tools_score(question, [], [], "", 0, SearchToolsConfig()), SearchToolsFamily.measures),
        (gsm8k_score(question, AssistantTurn("1"), 0.0), GSM8KFamily.measures),
    ]


def test_every_metric_is_documented_and_every_documented_metric_exists():
    made = {"compilations", "data/position", "seconds/rollouts", "seconds/update"}
    learnt = (PACKAGE / "trainer.py").read_text() + (PACKAGE / "learning/step.py").read_text()
    counters = SearchCounters()
    with counters.search():
        pass
    made |= set(counters.take())
    made |= set(re.findall(r'"((?:learn|speed)/\w+)"', learnt)) | set(expert_metrics(np.ones((1, 2))))
    for score, measures in scores():
        record = RolloutRecord(
            run="r",
            split="s",
            step=1,
            task_id="q",
            group=0,
            attempt=0,
            uid=0,
            query="q",
            source="nq",
            tokens=(1, 2, 3),
            spans=(Span("prompt", 0, 1), Span("sampled", 1, 2), Span("observation", 2, 3)),
            sample_logprobs=(-1.0,),
            turns=(TurnRecord(calls=(CallRecord("finish"),)),),
            score_parts=score.parts,
            reward=score.reward,
        )
        summary = {name for name in summarise([record], 1, measures) if "_low" not in name}
        for name in set(rollout_metrics([record], 1)) | summary:
            group = name.split("/")[0]
            made.add(f"{group}/*" if group in ("source", "macro", "best_of_n") else name)
    assert documented_metrics() == made


def floors() -> list[list[str]]:
    table = (ROOT / "docs/architecture.md").read_text().split("## The house")[1].split("Lowest first")[0]
    rows = [quoted(line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]
    return [[name.removesuffix(".py").removesuffix("/") for name in row] for row in rows]


def imports(part: str) -> set[str]:
    """The parts of the package that a part imports, anywhere in its files."""
    files = (PACKAGE / part).rglob("*.py") if (PACKAGE / part).is_dir() else [PACKAGE / f"{part}.py"]
    pattern = re.compile(r"^\s*(?:from|import) jaxsearchrl\.(\w+)", re.MULTILINE)
    return {name for file in files for name in pattern.findall(file.read_text())} - {part}


def test_every_part_stands_on_a_floor():
    named = [part for row in floors() for part in row]
    parts = [path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert sorted(named) == sorted(set(parts) - {"__init__"})


def test_imports_only_go_down():
    below: set[str] = set()
    for row in floors():
        for part in row:
            assert imports(part) <= below | set(row), part
        below |= set(row)


def test_four_parts_know_nothing_of_each_other():
    parts = {"trajectory", "models", "search", "chat"}
    for part in parts:
        assert not imports(part) & (parts - {part})


def test_rewards_stand_on_nothing():
    assert not imports("rewards")
