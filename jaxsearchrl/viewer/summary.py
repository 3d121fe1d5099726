"""What lists of rollouts show of each: a few numbers, and the turns as a strip."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from jaxsearchrl.records import SCHEMA, TOKEN_LIMIT
from jaxsearchrl.viewer.facts import Fact, facts_of

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
    """A record without its texts and tokens. number: its line in the file, from 1."""

    number: int
    task_id: str
    query: str
    group: int
    attempt: int
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
    documents: tuple[str, ...]


def summarise(data: Mapping[str, Any], number: int) -> Summary:
    """The summary of a record's JSON object.

    Raises KeyError, TypeError, ValueError or AttributeError for an object that is none.
    """
    if data.get("schema") != SCHEMA:
        raise ValueError(f"schema {data.get('schema')!r:.40}, this version reads {SCHEMA}")
    spans, turns = data["spans"], data["turns"]
    places = [(str(span["kind"]), _count(span["start"]), _count(span["stop"])) for span in spans]
    end = places[-1][2] if places else 0
    kinds: list[list[Kind]] = [[kind_of(call) for call in turn["calls"]] for turn in turns]
    return Summary(
        number=number,
        task_id=str(data["task_id"]),
        query=str(data["query"]),
        group=_count(data["group"]),
        attempt=_count(data["attempt"]),
        reward=None if data["reward"] is None else _finite(data["reward"]),
        advantage=None if data["advantage"] is None else _finite(data["advantage"]),
        outcome=str(data["outcome"]),
        stop_reason=str(data["stop_reason"]),
        parts={str(name): _finite(value) for name, value in data["score_parts"].items()},
        strips=_strips(turns, kinds, end),
        prompt_tokens=sum(stop - start for kind, start, stop in places if kind == "prompt"),
        tokens=end,
        seconds=_finite(data["seconds"]),
        flags=_flags(data, sum(kind == "invalid" for of_turn in kinds for kind in of_turn)),
        facts=facts_of(data["gold"]),
        documents=tuple(dict.fromkeys(str(seen["id"]) for turn in turns for seen in turn["encountered"])),
    )


def kind_of(call: Mapping[str, Any]) -> Kind:
    """What a call is, by its name; a call that was not carried out is invalid whatever its name."""
    name = str(call["name"])
    if not call["ok"] and (not name or str(call["outcome"]).startswith(_FAULTS)):
        return "invalid"
    return _kind_by_name(name[:100])


@lru_cache(maxsize=1024)
def _kind_by_name(name: str) -> Kind:
    for part, kind in _NAMES.items():
        if part in name.lower():
            return kind
    return "text"


def _strips(turns: Sequence[Mapping[str, Any]], kinds: Sequence[Sequence[Kind]], end: int) -> tuple[Strip, ...]:
    """kinds: of the calls of each turn; end: the tokens of the episode."""
    places = [(_count(turn["tokens"][0]), _count(turn["tokens"][1])) if turn["tokens"] else None for turn in turns]
    nexts = iter([*(place[0] for place in places if place), end][1:])
    strips = []
    for turn, place, of_turn in zip(turns, places, kinds, strict=True):
        shown: tuple[Kind, ...] = tuple(dict.fromkeys(of_turn)) or ("text",)
        if place:
            strips.append(Strip(shown, max(0, place[1] - place[0]), max(0, next(nexts) - place[1])))
        else:
            strips.append(Strip(shown, len(str(turn["text"])) // 4 + 1, len(str(turn["observation"])) // 4))
    return tuple(strips)


def _flags(data: Mapping[str, Any], invalid: int) -> tuple[str, ...]:
    """What is out of order in an episode, in words. invalid: how many of its calls are."""
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


def _count(value: Any) -> int:
    """A number of tokens, or a place among few things, as JSON has it."""
    if type(value) is not int or not 0 <= value < TOKEN_LIMIT:
        raise ValueError(f"{value!r:.40} is no whole number from 0")
    return value


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{value!r:.40} is no number")
    return float(value)
