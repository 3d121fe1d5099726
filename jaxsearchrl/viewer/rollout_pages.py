"""The page of a rollout, its tokens, and the same as plain text."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from markupsafe import Markup

from jaxsearchrl.records import CallRecord, TurnRecord
from jaxsearchrl.viewer.facts import facts_of, states_after
from jaxsearchrl.viewer.groups import key_of, part_names, scale_of
from jaxsearchrl.viewer.record_file import Contents
from jaxsearchrl.viewer.render import Here, render
from jaxsearchrl.viewer.runs import Place, Run
from jaxsearchrl.viewer.summary import Summary, kind_of
from jaxsearchrl.viewer.terminal import as_text
from jaxsearchrl.viewer.visible import LONGEST, finder, lit, visible

_SHORT = (700, 8)  # an observation of so few characters and lines is never folded
_LEVELS = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Where the colour of a token changes: nats that its log-prob lies below 0."""


@dataclass(frozen=True)
class Observation:
    """What a turn was answered: the lines that matter, and all of it."""

    head: Markup
    whole: Markup
    characters: int
    folded: bool


def rollout_page(here: Here, run: Run, split: str, step: str, number: str) -> str | None:
    """The conversation, turn by turn, and all that is known of it."""
    place, contents, summary = _find(run, split, step, number)
    if summary is None:
        return None
    record = run.file(split, place.step).record(summary.number)
    facts = facts_of(record.gold)
    gold = {name for fact in facts for name in fact.documents}
    words = finder([*gold, *(answer for fact in facts for answer in fact.answers)])
    turns = [asdict(turn) for turn in record.turns]
    return render(
        "rollout.html",
        here,
        run=run,
        place=place,
        record=record,
        summary=summary,
        facts=facts,
        history=states_after(facts, turns),
        gold=gold,
        turns=[_turn(turn, words) for turn in record.turns],
        names=part_names([summary]),
        scale=scale_of(contents.summaries),
        capacity=run.setting("sampling", "capacity", int),
        key_of=key_of,
        **_ways(contents, summary),
    )


def tokens_page(here: Here, run: Run, split: str, step: str, number: str) -> str | None:
    """Every token, coloured by mask, log-prob or advantage."""
    place, contents, summary = _find(run, split, step, number)
    if summary is None:
        return None
    record = run.file(split, place.step).record(summary.number)
    texts = run.token_texts.texts(record.tokens)
    logprobs = iter(record.sample_logprobs)
    side = "" if not record.advantage else " up" if record.advantage > 0 else " down"
    spans = []
    for span in record.spans:
        sampled = span.kind == "sampled"
        tokens = [
            _token(record.tokens[at], texts[at], next(logprobs) if sampled else None, run, side)
            for at in range(span.start, span.stop)
        ]
        spans.append((span, Markup("".join(tokens))))
    return render(
        "tokens.html",
        here,
        run=run,
        place=place,
        record=record,
        summary=summary,
        spans=spans,
        levels=[0.0, *_LEVELS],
        fault=run.token_texts.fault,
        **_ways(contents, summary),
    )


def text_page(here: Here, run: Run, split: str, step: str, number: str) -> str | None:
    """The whole rollout for a reader of plain text."""
    place, _, summary = _find(run, split, step, number)
    if summary is None:
        return None
    return as_text(run.file(split, place.step).record(summary.number), colour=False)


def _find(run: Run, split: str, step: str, number: str) -> tuple[Place, Contents, Summary | None]:
    place = Place(split, int(step))
    contents = run.file(split, place.step).contents()
    return place, contents, contents.summary(int(number))


def _ways(contents: Contents, summary: Summary) -> dict[str, Summary | None]:
    """The rollouts that one key away are."""
    order = list(contents.summaries)
    at = order.index(summary)
    scored = [other for other in order if other.reward is not None]
    group = [other for other in scored if (other.group, other.task_id) == (summary.group, summary.task_id)]

    def reward(other: Summary) -> float:
        return other.reward or 0.0

    return {
        "before": order[at - 1] if at else None,
        "after": order[at + 1] if at + 1 < len(order) else None,
        "best": max(group, key=reward, default=None),
        "worst": min(group, key=reward, default=None),
        "best_of_step": max(scored, key=reward, default=None),
        "worst_of_step": min(scored, key=reward, default=None),
    }


def _turn(turn: TurnRecord, words: Any) -> dict[str, Any]:
    return {
        "turn": turn,
        "text": lit(turn.text, words),
        "reasoning": lit(turn.reasoning, words),
        "calls": [_call(call, words) for call in turn.calls],
        "observation": _observation(turn.observation, words),
    }


def _call(call: CallRecord, words: Any) -> dict[str, Any]:
    return {
        "kind": kind_of(asdict(call)),
        "name": visible(call.name or "malformed call"),
        "ok": call.ok,
        "outcome": lit(call.outcome, words),
        "arguments": [(visible(name), lit(_shown(value), words)) for name, value in call.arguments.items()],
    }


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _observation(text: str, words: Any) -> Observation:
    """Folded, unless it is short, to the lines in which gold stands."""
    lines = text[:LONGEST].split("\n")
    folded = len(text) > _SHORT[0] or len(lines) > _SHORT[1]
    kept = [line[:400] for line in lines if words is not None and words.search(line)] if folded else []
    return Observation(
        Markup("\n").join(lit(line, words) for line in kept[:12]),
        lit(text, words),
        len(text),
        folded,
    )


def _token(token: int, text: str, logprob: float | None, run: Run, side: str) -> str:
    """Markup: of its parts only the text is not ours, and `visible` escapes that."""
    if logprob is None:
        kind, words = "o", str(token)
    else:
        kind = f"s p{sum(-logprob >= level for level in _LEVELS)}{side}"
        words = f"{token} {logprob:.3g}"
    if run.token_texts.special(token):
        kind += " special"
    shown = visible(text.replace("\n", "⏎\n")) if text else f"[{token}]"
    return f'<span class="{kind}" title="{words}">{shown}</span>'
