"""Why an episode did not solve its task: one word each, by rules over what its record holds.

The first that holds:

    format              it ended by a malformed or forbidden turn, or answered nothing although no limit stopped it
    over-searching      a limit ended it with nothing handed over, though it had been shown all that it needed
    budget              a limit ended it with nothing handed over (turns, calls, context, a turn cut off)
    unsupported answer  it answered without being shown anything; or its answer stands in nothing that it was shown
    bad query           its searches did not show it (all of) the evidence
    ignored evidence    the evidence was shown, and left out of the set or of the answer

After nano-agentrl's taxonomy. A rule sees what was shown and what was handed over, and no intention: of a set or an
answer that is wrong for two reasons, the first in the list counts.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from jaxsearchrl.evaluation.reliability import is_solved
from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.rewards.answer_line import answer_line
from jaxsearchrl.rewards.text_match import cover_match
from jaxsearchrl.telemetry.metrics import is_empty

Failure = Literal["format", "over-searching", "budget", "unsupported answer", "bad query", "ignored evidence"]
FAILURES: tuple[Failure, ...] = get_args(Failure)

SEARCHES = ("bm25_search", "grep_corpus", "search")
"""The tools that look for documents."""
_LIMITS = ("turns", "tool_calls", "context")
_RULE_BREAKS = ("malformed", "invalid", "no_call")


def failure(record: RolloutRecord) -> Failure | None:
    """The word for a scored episode; None for one that solved its task."""
    if is_solved(record):
        return None
    if record.stop_reason in _RULE_BREAKS:
        return "format"
    shown = _evidence_shown(record)
    if is_empty(record):
        if record.stop_reason in _LIMITS or record.truncated:
            return "over-searching" if shown else "budget"
        return "format"
    if not _searched(record):  # documents may still have stood in its prompt
        return "ignored evidence" if shown else "unsupported answer"
    if not shown:
        return "bad query"
    return "unsupported answer" if _stands_nowhere(record) else "ignored evidence"


def failures(records: Sequence[RolloutRecord]) -> dict[str, int]:
    """How often each occurs among the scored records; all words, in the order of the rules, and "solved" first.

    Nothing for a family without searches.
    """
    scored = [record for record in records if not record.failed]
    if not any({"candidate_recall", "retrieved"} & record.score_parts.keys() for record in scored):
        return {}
    words = Counter(failure(record) or "solved" for record in scored)
    return {word: words[word] for word in ("solved", *FAILURES)}


def _evidence_shown(record: RolloutRecord) -> bool:
    """Whether the episode was shown all that its task needs."""
    parts = record.score_parts
    return parts.get("candidate_recall", parts.get("retrieved", 0.0)) >= 1


def _searched(record: RolloutRecord) -> bool:
    return any(call.ok and call.name in SEARCHES for turn in record.turns for call in turn.calls)


def _stands_nowhere(record: RolloutRecord) -> bool:
    """Whether an answer in words is part of no observation. All of a curated set was shown."""
    answer = _answer(record)
    return bool(answer) and not any(cover_match(turn.observation, [answer]) for turn in record.turns)


def _answer(record: RolloutRecord) -> str:
    last = record.turns[-1]
    texts = [call.arguments.get("text") for call in last.calls if call.name == "answer"]
    answer = texts[-1] if texts else answer_line(last.text)
    return answer.strip() if isinstance(answer, str) else ""
