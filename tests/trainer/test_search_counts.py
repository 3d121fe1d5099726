"""Whose searches a row of metrics counts: those of its own rollouts, and no others."""

from contextlib import nullcontext
from types import SimpleNamespace

from jaxsearchrl import trainer
from jaxsearchrl.config import Config, EvalConfig
from jaxsearchrl.rollouts.loop import Rollout
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.trajectory import Trajectory


def test_an_evaluation_counts_its_own_searches(monkeypatch):
    searches, rows = SearchCounters(), []

    def search():
        with searches.search():
            pass

    def collect(tasks, tries, *_, **__):
        search()
        return [Rollout(Trajectory(), score=Score(1.0, {"exact": 1.0})) for _ in range(len(tasks) * tries)]

    monkeypatch.setattr(trainer, "collect", collect)
    monkeypatch.setattr(trainer, "write_records", lambda *_: None)
    experiment = SimpleNamespace(
        searches=searches,
        eval_tasks=[Question("q", "?", ("1",))],
        chat=None,
        family=SimpleNamespace(measures=("exact",)),
    )
    run = SimpleNamespace(
        config=Config(eval=EvalConfig(tries=1)),
        experiment=experiment,
        engine=SimpleNamespace(renew=lambda *_: None),
        lora=None,
        step=0,
        folder=SimpleNamespace(path=None),
        progress=SimpleNamespace(
            phase=lambda *_, **__: nullcontext(lambda: None),
            note=lambda _: None,
            seconds={"eval": 1.0, "eval_greedy": 1.0},
        ),
        writers=SimpleNamespace(write=lambda step, kind, metrics: rows.append(metrics)),
    )
    search()  # as the check of the prompts before a run may
    for split in ("eval", "eval_greedy"):
        trainer._evaluate(run, split)
    assert [row["search/success"] for row in rows] == [1.0, 1.0]
