"""An episode as text, for people and for a judge: the question, the gold, each turn and what answered it."""

import json
from collections.abc import Mapping
from typing import Any

from jaxsearchrl.records import RolloutRecord


def episode_text(record: RolloutRecord, most: int) -> str:
    """At most about `most` characters; of a longer episode the middle is left out, and the text says how much."""
    lines = [f"QUESTION\n{record.query}", f"GOLD\n{_in_words(record.gold)}"]
    for number, turn in enumerate(record.turns, start=1):
        said = [text for text in (turn.reasoning, turn.text) if text]
        calls = [f"{call.name or '(malformed)'} {_json(call.arguments)} -> {call.outcome}" for call in turn.calls]
        lines.append("\n".join([f"TURN {number}", *said, *calls]))
        lines.append(f"ANSWER\n{turn.observation}")
    reward = "no score" if record.reward is None else f"reward {record.reward:.3f}"
    lines.append(f"END {record.stop_reason}: {reward}")
    text = "\n\n".join(lines)
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n(… {len(text) - most} characters are left out …)\n{text[-tail:]}"


def _in_words(gold: Mapping[str, Any]) -> str:
    """The facts with the documents that support each, or the accepted answers."""
    if "facts" in gold:
        return "\n".join(f"{fact['fact']}: in {' or '.join(fact['chunk_ids'])}" for fact in gold["facts"])
    if "answers" in gold:
        return " or ".join(gold["answers"])
    return _json(gold)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
