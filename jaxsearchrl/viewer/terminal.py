"""A rollout, or the tries of a step, as text for a terminal. No text of a record can move the cursor or the colour."""

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict

from jaxsearchrl.errors import UserError
from jaxsearchrl.records import CallRecord, RolloutRecord
from jaxsearchrl.viewer.facts import STATES, facts_of, states_after
from jaxsearchrl.viewer.runs import Run
from jaxsearchrl.viewer.summary import Summary, kind_of
from jaxsearchrl.viewer.visible import plain

_SIGNS = {"never": "·", "seen": "o", "curated": "#", "dropped": "x"}
_LETTERS = {
    "search": "s",
    "grep": "g",
    "read": "r",
    "curate": "c",
    "drop": "d",
    "finish": "f",
    "invalid": "!",
    "text": "-",
}
_BOLD, _DIM, _GOLD, _RED = "1", "2", "33", "31"


def text_of(runs: list[Run], address: str, *, colour: bool) -> str:
    """A step or a rollout as text. Raises UserError for an address that names neither."""
    words = address.strip("/").split("/")
    number = words.pop() if len(words) > 2 and _is_number(words[-1]) and _is_number(words[-2]) else None
    if len(words) < 2 or not _is_number(words[-1]):
        places = [plain(f"{run.base}{place.path}") for run in runs for place in run.files()]
        raise UserError(
            f"--text={address}: name a step or a rollout, such as {places[0] if places else 'train/1'}/1; "
            f"there are {', '.join(places[:40]) or 'no records'}"
        )
    *base, split, step = words
    run = next((run for run in runs if run.base.strip("/") == "/".join(base)), None)
    if run is None:
        raise UserError(f"--text={address}: no such run; there are {', '.join(plain(run.base) or '.' for run in runs)}")
    file = run.file(split, int(step))
    if number is None:
        contents = file.contents()
        return table(contents.summaries, contents.faults)
    return as_text(file.record(int(number)), colour=colour)


def as_text(record: RolloutRecord, *, colour: bool) -> str:
    """The whole rollout."""
    facts = facts_of(record.gold)
    gold = {name for fact in facts for name in fact.documents}
    lines = [
        _styled(
            f"{plain(record.split)} step {record.step}, task {plain(record.task_id)}, try {record.attempt}",
            _BOLD,
            colour,
        ),
        f"reward {_number(record.reward)}  advantage {_number(record.advantage)}  outcome {plain(record.outcome)}  "
        f"stop {plain(record.stop_reason)}  {len(record.tokens)} tokens  {len(record.turns)} turns  "
        f"{record.seconds:.1f} s",
        "  ".join(f"{plain(name)} {_number(value)}" for name, value in record.score_parts.items() if value),
        "",
        *_block(record.query, "  "),
        "",
    ]
    history = states_after(facts, [asdict(turn) for turn in record.turns])
    if facts:
        lines.append(
            _styled("facts, turn by turn: " + ", ".join(f"{_SIGNS[s]} {STATES[s]}" for s in STATES), _DIM, colour)
        )
        for place, fact in enumerate(facts):
            signs = "".join(_SIGNS[states[place]] for states in history)
            lines.append(f"  {signs}  {plain(fact.text)} [{plain(', '.join(fact.documents or fact.answers))}]")
        lines.append("")
    for number, turn in enumerate(record.turns, start=1):
        tokens = f", {turn.tokens[1] - turn.tokens[0]} tokens" if turn.tokens else ""
        times = f"model {turn.seconds_model:.2f} s, tools {turn.seconds_tools:.2f} s{tokens}"
        cut = ", cut by the token limit" if turn.truncated else ""
        lines.append(_styled(f"── turn {number} ({times}{cut}) ", _BOLD, colour))
        lines += [_styled(line, _DIM, colour) for line in _block(turn.reasoning, "  ")]
        lines += _block(turn.text, "  ")
        lines += [_styled(f"  > {_call(call)}", "" if call.ok else _RED, colour) for call in turn.calls]
        for seen in turn.encountered:
            if seen.id in gold:
                lines.append(_styled(f"  * gold document {plain(seen.id)} at rank {seen.rank}", _GOLD, colour))
        lines += _block(turn.observation, "    | ")
        if turn.curated:
            lines.append(f"  curated: {plain(', '.join(turn.curated))}")
    lines += [_styled(f"infrastructure: {plain(error)}", _RED, colour) for error in record.infrastructure_errors]
    return "\n".join(lines) + "\n"


def table(summaries: Sequence[Summary], faults: Sequence[str]) -> str:
    """The tries of a step, a line each; the turns as letters."""
    letters = ", ".join(f"{letter} {kind}" for kind, letter in _LETTERS.items())
    lines = [
        f"turns: {letters}",
        f"{'no.':>5} {'group':>5} {'try':>3} {'reward':>7} {'adv.':>7} {'tokens':>6}  outcome",
    ]
    for s in summaries:
        turns = " ".join("".join(_LETTERS[kind] for kind in turn.kinds) for turn in s.strips)
        lines.append(
            f"{s.number:>5} {s.group:>5} {s.attempt:>3} {_number(s.reward):>7} {_number(s.advantage):>7} "
            f"{s.tokens:>6}  {plain(s.outcome)}, {plain(s.stop_reason)}  [{turns}]  "
            f"{plain(' '.join(s.query[:60].split()))}"
        )
    return "\n".join([*lines, *(f"! {plain(fault)}" for fault in faults)]) + "\n"


def print_text(text: str) -> None:
    """To standard output, whatever its encoding. A reader who has seen enough (`| head`) may close it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends


def _is_number(word: str) -> bool:
    return re.fullmatch("[0-9]{1,15}", word) is not None


def _call(call: CallRecord) -> str:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    letter, name = _LETTERS[kind_of(asdict(call))], plain(call.name or "malformed")
    return f"[{letter}] {name} {plain(arguments)} → {plain(call.outcome)}{'' if call.ok else ' (failed)'}"


def _block(text: str, indent: str) -> list[str]:
    return [indent + line for line in plain(text).split("\n")] if text else []


def _styled(text: str, style: str, colour: bool) -> str:
    return f"\033[{style}m{text}\033[0m" if colour and style else text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
