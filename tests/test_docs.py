"""The documents name files, tests, settings, metrics and floors; all of them must exist, and the floors must hold."""

import re
from pathlib import Path

import pytest

from jaxsearchrl.config import Config, TaskConfig
from jaxsearchrl.config_tree import leaf_types
from jaxsearchrl.evaluation.evaluate import summarise
from jaxsearchrl.records import CallRecord, RolloutRecord, TurnRecord
from jaxsearchrl.tasks.curated.data import Fact
from jaxsearchrl.tasks.curated.reward import Counters, score
from jaxsearchrl.telemetry.metrics import rollout_metrics
from jaxsearchrl.trajectory import Span

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxsearchrl"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SECTIONS = {key.split(".")[0] for key in leaf_types(Config) if "." in key}


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
    assert not [name for name in missing if not re.match(r"(runs|evaluations|plots|rollouts|tensorboard)/", name)]


def test_named_tests_exist(document):
    names = [word for word in quoted(document.read_text()) if re.fullmatch(r"test_\w+", word)]
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name in names if f"def {name}(" not in sources]


def test_named_settings_exist(document):
    text = document.read_text()
    named = re.findall(r"--config\.([\w.]+)", text)
    named += [match[1] for word in quoted(text) if (match := re.match(r"(\w+\.\w+)(=|$)", word))]
    keys = leaf_types(Config)
    files = {"py", "md", "json", "jsonl", "txt", "gguf", "index", "lock"}
    named = [key for key in named if key.split(".")[0] in SECTIONS and key.split(".")[-1] not in files]
    assert not [key for key in named if key not in keys and key != "section.key"]


def documented_metrics() -> set[str]:
    tables = (ROOT / "docs/formats.md").read_text().split("### metrics.jsonl")[1].split("### Rollout records")[0]
    cells = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in quoted(cell) if not name.startswith("…")}


def test_every_metric_is_documented_and_every_documented_metric_exists():
    fact = Fact("f", ("a",), is_final_answer=True)
    scored = score(["a"], ["a"], [fact], TaskConfig(), Counters(stop_reason="finish"))
    spans = (Span("prompt", 0, 1), Span("sampled", 1, 2), Span("observation", 2, 3))
    record = RolloutRecord(
        run="r",
        split="eval",
        step=1,
        task_id="q",
        group=0,
        attempt=0,
        uid=0,
        query="q",
        tokens=(1, 2, 3),
        spans=spans,
        sample_logprobs=(-1.0,),
        turns=(TurnRecord(calls=(CallRecord("finish"),)),),
        score_parts=scored.parts,
        reward=scored.reward,
    )
    made = set(rollout_metrics([record], 1)) | {name for name in summarise([record], 1) if "_low" not in name}
    trainer = (PACKAGE / "trainer.py").read_text()
    made |= set(re.findall(r'"((?:learn|speed)/\w+)"', trainer)) | {"compilations"}
    made |= {"seconds/rollouts", "seconds/update"}
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
