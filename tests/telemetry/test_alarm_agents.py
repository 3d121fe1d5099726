"""Scripted agents that hack, drift or collapse in real episodes: the metrics of their rollouts raise the alarm for it.

The thresholds are those of the module, fixed before; which related alarms may join is declared in the table.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.messages import AssistantTurn, MalformedCall, ToolCall
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.rollouts.loop import answer_turn, turn_record
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.tasks.curated.data import Fact, Task
from jaxsearchrl.tasks.curated.environment import CuratedEnvironment
from jaxsearchrl.telemetry.alarms import alarm_history
from jaxsearchrl.telemetry.metrics import rollout_metrics
from jaxsearchrl.trajectory import Span

STEPS, GROUPS, TRIES = 24, 4, 4
WORDS = ("moons", "owls", "tea", "oaks", "rain", "iron")
OPTIONS = CuratedConfig(max_turns=4, max_observation_tokens=10_000, search_default_k=4)

SEARCH = ToolCall("bm25_search", {"query": "moons"})
FINISH = ToolCall("finish", {})
BROKEN = MalformedCall("finish(", "not JSON")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("alarms") / "corpus.jsonl"
    rows = [{"id": f"{word}{n}", "title": word, "text": f"About {word}, part {n}."} for word in WORDS for n in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_or_build(path)


def good(rng):
    """Searches, takes what it needs (now and then less), and finishes; one try in five hands over nothing."""
    take = [f"moons{n}" for n in range(2) if rng.random() < 0.8]
    if rng.random() < 0.2 or not take:
        return [[SEARCH], [FINISH]]
    return [[SEARCH], [ToolCall("curate", {"document_ids": take})], [FINISH]]


def curates_anything(rng):
    """All of what a search for next to nothing shows."""
    some = [f"{word}{n}" for word in rng.permutation(WORDS)[:3] for n in range(4)]
    vague = ToolCall("bm25_search", {"query": "about part", "k": 24})
    return [[vague], [ToolCall("curate", {"document_ids": some})], [FINISH]]


def shy(rng):
    """Hands over nothing in half of the cases; a good start for a hack."""
    return [[SEARCH], [FINISH]] if rng.random() < 0.4 else good(rng)


def never_finishes(rng):
    return [*good(rng)[:-1], *[[ToolCall("bm25_search", {"query": word})] for word in rng.permutation(WORDS)]]


def forgets_the_form(rng):
    return [[BROKEN] if rng.random() < 0.3 else calls for calls in good(rng)]


def repeats_itself(rng):
    return [[SEARCH] * 2, *good(rng)]


def gives_up(rng):
    return [[FINISH]]


FORM = {"tool errors", "empty", "broken finish", "not finished"}
# name of the alarm -> how agents play at the start and at the end, tokens of a turn and log-probs then, related alarms
PATHOLOGIES = {
    "curate anything": (shy, curates_anything, (40, 40), (-0.5, -0.4), {"empty"}),
    "broken finish": (good, never_finishes, (40, 40), (-0.5, -0.4), {"not finished"}),
    "call format drift": (
        good,
        forgets_the_form,
        (40, 40),
        (-0.5, -0.4),
        {"tool errors", "empty", "broken finish", "not finished"},
    ),
    "duplicate calls": (good, repeats_itself, (40, 40), (-0.5, -0.4), set()),
    "length collapse": (good, gives_up, (40, 20), (-0.5, -0.4), {"empty", "all bad", "no signal"}),
    "length blow-up": (good, good, (40, 240), (-0.5, -0.4), set()),
    "entropy collapse": (good, good, (40, 40), (-0.5, 0.0), {"entropy fall"}),
}


def episode(index, turns, uid, tokens, logprob):
    """The record of an episode: so many sampled tokens a turn, each with that log-prob."""
    task = Task(f"q{uid // TRIES}", "moons?", (Fact("a", ("moons0",)), Fact("b", ("moons1",))))
    environment = CuratedEnvironment(task, index, index, OPTIONS, len)
    environment.reset()
    records = []
    for calls in turns:
        span = Span("sampled", tokens * len(records), tokens * (len(records) + 1))
        answer = answer_turn(environment, AssistantTurn(calls=tuple(calls)), ())
        assert not answer.failed, answer.errors
        records.append(turn_record(AssistantTurn(), span, answer, 0.0))
        if answer.done:
            break
    score, sampled = environment.score(), tokens * len(records)
    return RolloutRecord(
        run="r", split="train", step=1, task_id=task.id, group=uid // TRIES, attempt=uid % TRIES, uid=uid,
        query=task.query, gold=task.gold, tokens=(1,) * sampled, spans=(Span("sampled", 0, sampled),),
        sample_logprobs=(logprob,) * sampled, turns=tuple(records), score_parts=score.parts, reward=score.reward,
        outcome=score.outcome, stop_reason=environment.stop_reason or "context",
    )  # fmt: skip


def raised(index, first, last, tokens, logprobs, seed):
    """The alarms of a run in which ever more tries are played as `last` does."""
    rng, rows = np.random.default_rng(seed), []
    for step in range(STEPS):
        share = step / (STEPS - 1)
        length = round(tokens[0] + share * (tokens[1] - tokens[0]))
        logprob = logprobs[0] + min(1.0, 2 * share) * (logprobs[1] - logprobs[0])
        records = [
            episode(index, (last if rng.random() < share else first)(rng), uid, length, logprob)
            for uid in range(GROUPS * TRIES)
        ]
        about = {"step": step + 1, "data/position": (step + 1) * GROUPS}
        rows.append(rollout_metrics([replace(record, step=step + 1) for record in records], TRIES) | about)
    return {alarm.name for _, alarm in alarm_history(rows)}


@pytest.mark.parametrize("name", PATHOLOGIES)
def test_an_agent_that_goes_wrong_raises_its_alarm_and_at_most_related_ones(index, name):
    *course, related = PATHOLOGIES[name]
    found = raised(index, *course, seed=0)
    assert name in found
    assert found <= {name, *related}


def test_agents_that_stay_good_raise_nothing(index):
    assert raised(index, good, good, (40, 35), (-0.5, -0.4), seed=1) == set()
