"""Records of real episodes: scripted turns in the real environments, over a small real index."""

import json
from dataclasses import replace

import pytest

from jaxsearchrl.config import Config, CuratedConfig, EvalConfig, SearchR1Config, SearchToolsConfig
from jaxsearchrl.config_tree import to_json
from jaxsearchrl.evaluation.evaluate import summarise
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall
from jaxsearchrl.records import RolloutRecord, write_records
from jaxsearchrl.rollouts.loop import answer_turn, turn_record
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.tasks.curated.data import Fact, Task
from jaxsearchrl.tasks.curated.family import CuratedFamily
from jaxsearchrl.tasks.families import measures_of
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_r1.family import SearchR1Family
from jaxsearchrl.tasks.search_tools.family import SearchToolsFamily
from jaxsearchrl.telemetry.metrics import rollout_metrics
from jaxsearchrl.telemetry.metrics_file import MetricsFile
from jaxsearchrl.trajectory import Span

DOCUMENTS = [
    ("mars", "Mars", "Mars has two moons, Phobos and Deimos."),
    ("owl", "Owls", "An owl turns its head by 270 degrees."),
    ("oak", "Oak trees", "An oak bears acorns."),
    ("moon", "The Moon", "The Moon orbits the Earth in 27 days, other moons do not."),
]
TASK = Task(
    "q1", "Which moons has Mars?\nHow far does an owl turn its head?", (Fact("a", ("mars",)), Fact("b", ("owl",)))
)
QUESTION = Question("q2", "Which moons has Mars?", ("Phobos and Deimos",))
FAMILIES = {CuratedConfig: CuratedFamily, SearchR1Config: SearchR1Family, SearchToolsConfig: SearchToolsFamily}

REPORTED = CuratedConfig(max_turns=3, max_observation_tokens=8192)


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluation") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": i, "title": t, "text": text}) + "\n" for i, t, text in DOCUMENTS))
    return open_or_build(path)


@pytest.fixture
def play(index):
    """The record of an episode: play(options, *turns), a turn being its calls or itself. Cut short: "context"."""

    def make(options, *turns, **about):
        task = TASK if isinstance(options, CuratedConfig) else QUESTION
        environment = FAMILIES[type(options)](options, index).environment(task, len, 0)
        environment.reset()
        records, stop = [], "context"
        for turn in turns:
            turn = turn if isinstance(turn, AssistantTurn) else AssistantTurn(calls=tuple(turn))
            answer = answer_turn(environment, turn, ())
            assert not answer.failed, answer.errors
            records.append(replace(turn_record(turn, Span("sampled", 0, 0), answer, 0.0), tokens=None))
            stop = environment.stop_reason or stop
        score = environment.score()
        values = {"run": "r", "split": "eval", "step": 0, "uid": 0, "group": 0, "attempt": 0, "stop_reason": stop}
        scored = {"reward": score.reward, "score_parts": score.parts, "outcome": score.outcome}
        asked = {"task_id": task.id, "query": task.query, "gold": task.gold, "turns": tuple(records)}
        return RolloutRecord(**(values | asked | scored | about))

    return make


class Calls:
    """Short names for calls."""

    finish = ToolCall("finish", {})
    broken = MalformedCall("{", "not JSON")

    @staticmethod
    def search(query, **more):
        return ToolCall("bm25_search", {"query": query, **more})

    @staticmethod
    def curate(*ids):
        return ToolCall("curate", {"document_ids": list(ids)})

    @staticmethod
    def drop(*ids):
        return ToolCall("drop_curated", {"document_ids": list(ids)})

    @staticmethod
    def tag(name, text):
        """A turn of Search-R1 by tags."""
        key = "query" if name == "search" else "text"
        return AssistantTurn(f"<think>t</think>\n<{name}> {text} </{name}>", calls=(ToolCall(name, {key: text}),))


@pytest.fixture
def calls():
    return Calls


@pytest.fixture
def write_run(tmp_path, play, calls):
    """A run of three tasks and two tries, evaluated at step 0 (one fact of two) and at step 4 (both, or one)."""

    def write(name, *, good=True, tasks=("a", "b", "c"), tokens=100.0):
        c, folder = calls, tmp_path / name
        half = [[c.search("Mars <script>alert(1)</script>"), c.search("owl"), c.curate("mars"), c.finish]]
        full = [[c.search("Mars"), c.search("owl"), c.curate("mars", "owl"), c.finish]]
        config = Config(name=name, task=REPORTED, eval=EvalConfig(every=4, tasks=3, tries=2))
        folder.mkdir()
        (folder / "config.json").write_text(to_json(config))
        metrics = MetricsFile(folder)
        for step, plays in ((0, [half, half]), (4, [full, full if good else half])):
            records = [
                play(REPORTED, *turns, step=step, task_id=task, group=group, attempt=attempt, uid=2 * group + attempt)
                for group, task in enumerate(tasks)
                for attempt, turns in enumerate(plays)
            ]
            write_records(folder, "eval", step, records)
            metrics.append(step, "eval", summarise(records, 2, measures_of(REPORTED)))
            if step:
                trained = [replace(record, split="train") for record in records]
                write_records(folder, "train", step, trained)
        for step in range(1, 5):
            row = {**rollout_metrics(records, 2), "rate/truncated": 0.9, "tokens/sampled": tokens}
            metrics.append(step, "train", row)
        return folder

    return write
