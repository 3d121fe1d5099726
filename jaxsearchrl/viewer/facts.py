"""What an episode was to find, and how far it had come after each turn."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["never", "seen", "curated", "dropped"]
STATES: dict[str, str] = {
    "never": "never seen",
    "seen": "seen",
    "curated": "handed over",
    "dropped": "dropped again",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """Something to find: documents any one of which supports it, or answers any one of which is right."""

    text: str
    documents: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    final: bool = False


def facts_of(gold: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The facts of a curated-set task, or one fact for the accepted answers of a question; none for another gold."""
    facts, answers = gold.get("facts"), gold.get("answers")
    if isinstance(facts, list) and all(isinstance(f, dict) and isinstance(f.get("chunk_ids"), list) for f in facts):
        return tuple(
            Fact(str(f.get("fact", "")), tuple(map(str, f["chunk_ids"])), (), bool(f.get("is_final_answer")))
            for f in facts
        )
    if isinstance(answers, list):
        return (Fact("an accepted answer", (), tuple(filter(str.strip, map(str, answers)))),)
    return ()


def states_after(facts: Sequence[Fact], turns: Sequence[Mapping[str, Any]]) -> list[tuple[State, ...]]:
    """For each turn the state of each fact after it."""
    seen: set[str] = set()
    history: list[tuple[State, ...]] = []
    before: tuple[State, ...] = ("never",) * len(facts)
    for turn in turns:
        seen |= {str(found["id"]) for found in turn["encountered"]}
        before = tuple(_state(fact, was, seen, turn) for fact, was in zip(facts, before, strict=True))
        history.append(before)
    return history


def _state(fact: Fact, was: State, seen: set[str], turn: Mapping[str, Any]) -> State:
    if fact.answers:
        written = [str(turn["text"]), *(json.dumps(call["arguments"], ensure_ascii=False) for call in _answers(turn))]
        if _contains(" ".join(written), fact.answers):
            return "curated"
        return "seen" if was == "never" and _contains(str(turn["observation"]), fact.answers) else was
    if set(fact.documents) & set(turn["curated"]):
        return "curated"
    if was in ("curated", "dropped"):
        return "dropped"
    return "seen" if seen & set(fact.documents) else "never"


def _answers(turn: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [call for call in turn["calls"] if "answer" in str(call["name"]).lower()]


def _contains(text: str, answers: Sequence[str]) -> bool:
    folded = text.casefold()
    return any(answer.casefold() in folded for answer in answers)
