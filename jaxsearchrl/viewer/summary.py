"""What lists of rollouts show of each: a few numbers, the turns as a strip, what became of each fact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxsearchrl.records import SCHEMA
from jaxsearchrl.viewer.facts import Fact, State, facts_of, states_after

Kind = Literal["search", "grep", "read", "curate", "drop", "finish", "invalid", "text"]
KINDS: dict[str, str] = {
    "search": "searches",
    "grep": "greps",
    "read": "reads a document",
    "curate": "curates",
    "drop": "drops",
    "finish": "finishes or answers",
    "invalid": "a call that failed",
    "text": "writes without a call",
}
_NAMES: dict[str, Kind] = {
    "search": "search",
    "grep": "grep",
    "read": "read",
    "drop": "drop",
    "curate": "curate",
    "finish": "finish",
    "answer": "finish",
}
# Outcomes of a call that was not carried out; any other call with a fault did a part of its work.
_FAULTS = ("malformed_call", "invalid_arguments", "unknown_tool", "bad_pattern", "not_executed", "too_late", "refused")


@dataclass(frozen=True, slots=True)
class Strip:
    """A turn in short. sampled, observed: tokens that the policy wrote, and that answered it."""

    kinds: tuple[Kind, ...]
    sampled: int
    observed: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A record without its texts and tokens. number: its line in the file, from 1; facts: their states at the end."""

    number: int
    task_id: str
    query: str
    group: int
    attempt: int
    adapter: int
    reward: float | None
    advantage: float | None
    outcome: str
    stop_reason: str
    parts: Mapping[str, float]
    strips: tuple[Strip, ...]
    prompt_tokens: int
    tokens: int
    seconds: float
    flags: tuple[str, ...]
    facts: tuple[Fact, ...]
    states: tuple[State, ...]
    documents: tuple[str, ...]


def summarise(data: Mapping[str, Any], number: int) -> Summary:
    """The summary of a record's JSON object. Raises KeyError, TypeError or ValueError for an object that is none."""
    if data.get("schema") != SCHEMA:
        raise ValueError(f"schema {data.get('schema')!r}, this version reads {SCHEMA}")
    spans, turns = data["spans"], data["turns"]
    facts = facts_of(data["gold"])
    states = states_after(facts, turns)
    return Summary(
        number=number,
        task_id=str(data["task_id"]),
        query=str(data["query"]),
        group=int(data["group"]),
        attempt=int(data["attempt"]),
        adapter=int(data["adapter"]),
        reward=None if data["reward"] is None else float(data["reward"]),
        advantage=None if data["advantage"] is None else float(data["advantage"]),
        outcome=str(data["outcome"]),
        stop_reason=str(data["stop_reason"]),
        parts={str(name): float(value) for name, value in data["score_parts"].items()},
        strips=_strips(turns, spans),
        prompt_tokens=sum(span["stop"] - span["start"] for span in spans if span["kind"] == "prompt"),
        tokens=spans[-1]["stop"] if spans else 0,
        seconds=float(data["seconds"]),
        flags=_flags(data),
        facts=facts,
        states=states[-1] if states else ("never",) * len(facts),
        documents=tuple(dict.fromkeys(str(seen["id"]) for turn in turns for seen in turn["encountered"])),
    )


def kind_of(call: Mapping[str, Any]) -> Kind:
    """What a call is, by its name; a call that was not carried out is invalid whatever its name."""
    name, outcome = str(call["name"]).lower(), str(call["outcome"])
    if not call["ok"] and (not name or outcome.startswith(_FAULTS)):
        return "invalid"
    for part, kind in _NAMES.items():
        if part in name:
            return kind
    return "text"


def _strips(turns: Sequence[Mapping[str, Any]], spans: Sequence[Mapping[str, Any]]) -> tuple[Strip, ...]:
    strips = []
    starts = [turn["tokens"][0] for turn in turns if turn["tokens"]] + [spans[-1]["stop"] if spans else 0]
    nexts = iter(starts[1:])
    for turn in turns:
        kinds: tuple[Kind, ...] = tuple(dict.fromkeys(kind_of(call) for call in turn["calls"])) or ("text",)
        if turn["tokens"]:
            start, stop = turn["tokens"]
            strips.append(Strip(kinds, stop - start, max(0, next(nexts) - stop)))
        else:
            strips.append(Strip(kinds, len(str(turn["text"])) // 4 + 1, len(str(turn["observation"])) // 4))
    return tuple(strips)


def _flags(data: Mapping[str, Any]) -> tuple[str, ...]:
    """What is out of order in an episode, in words."""
    calls = [call for turn in data["turns"] for call in turn["calls"]]
    invalid = sum(kind_of(call) == "invalid" for call in calls)
    flags = [f"{invalid} failed call{'s' * (invalid > 1)}"] if invalid else []
    if data["truncated"] or any(turn["truncated"] for turn in data["turns"]):
        flags.append("cut by the token limit")
    if data["reward"] is None:
        flags.append("lost to the infrastructure")
    elif data["infrastructure_errors"]:
        flags.append("infrastructure errors")
    if data["outcome"] in ("empty", "unanswered"):
        flags.append("nothing handed over")
    return tuple(flags)
