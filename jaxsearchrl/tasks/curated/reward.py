"""The reward of a curated set: F-beta over precision of documents and recall of facts, and its small corrections.

With C the curated set, `gold` the union of all facts' chunk ids:
P = |C ∩ gold| / |C|, R = (facts with at least one chunk in C) / facts, F_b = (1 + b²) P R / (b² P + R).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.tasks.curated.data import Fact
from jaxsearchrl.tasks.environment import Score

MIN_REWARD = -1.0


@dataclass
class Counters:
    """What an episode did, in numbers. `stop_reason` is "" while it runs and "finish" when the model ended it."""

    turns: int = 0
    tool_calls: int = 0  # all calls that were answered as such, faulty ones included
    duplicate_calls: int = 0  # valid ones with tool and arguments of an earlier call
    malformed_calls: int = 0
    off_form_calls: int = 0  # read all the same, though not written in the chat format's own form
    refused_ids: int = 0  # ids given to `curate` that no search had shown
    reminders: int = 0  # turns without a call that were answered by a reminder
    stop_reason: str = ""


def precision(curated: Collection[str], facts: Sequence[Fact]) -> float:
    """Share of the distinct curated ids that support any fact; 0 for an empty set."""
    chosen = set(curated)
    gold = {chunk_id for fact in facts for chunk_id in fact.chunk_ids}
    return len(chosen & gold) / len(chosen) if chosen else 0.0


def recall(ids: Collection[str], facts: Sequence[Fact]) -> float:
    """Share of the facts that at least one of `ids` supports; 0 without facts."""
    chosen = set(ids)
    return sum(not chosen.isdisjoint(fact.chunk_ids) for fact in facts) / len(facts) if facts else 0.0


def f_beta(precision: float, recall: float, beta: float) -> float:
    """(1 + b²) P R / (b² P + R), recall weighing b² times as much as precision; 0 where the denominator is 0."""
    denominator = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / denominator if denominator else 0.0


def score(
    curated: Collection[str],
    encountered: Collection[str],
    facts: Sequence[Fact],
    options: CuratedConfig,
    counters: Counters,
) -> Score:
    """The score of an episode. `encountered`: the ids of all documents that it was shown.

    reward = f_beta + format_penalty + discovery_bonus + document_cost + invalid_curation_penalty + unfinished_penalty,
    at least -1; these parts carry their sign. An empty set, or an ending by a malformed call, is worth
    `options.empty_penalty` flat, and these parts are 0. Outcomes: "empty", "malformed", "none_relevant", "partial"
    (some facts), "complete" (all facts).
    """
    count = len(set(curated))
    p, r = precision(curated, facts), recall(curated, facts)
    final = [fact for fact in facts if fact.is_final_answer]
    parts = {
        "precision": p,
        "recall": r,
        **({"final_answer_recall": recall(curated, final)} if final else {}),
        **({"precision_given_finish": p, "recall_given_finish": r} if counters.stop_reason == "finish" else {}),
        "candidate_recall": recall(encountered, facts),
        "curated_count": float(count),
        "empty": float(not count),
        "turns": float(counters.turns),
        "tool_calls": float(counters.tool_calls),
        "duplicate_calls": float(counters.duplicate_calls),
        "malformed_calls": float(counters.malformed_calls),
        "off_form_calls": float(counters.off_form_calls),
        "refused_ids": float(counters.refused_ids),
        "reminders": float(counters.reminders),
    }
    return worth(parts, counters.stop_reason, options)


def worth(parts: Mapping[str, float], stop_reason: str, options: CuratedConfig) -> Score:
    """What an episode is worth that came to `parts` (those of `score` that no option changes) and ended so."""
    p, r, count = parts["precision"], parts["recall"], parts["curated_count"]
    f = f_beta(p, r, options.beta)
    off_form = parts["malformed_calls"] + parts.get("off_form_calls", 0.0)  # older records do not count the second
    corrections = {
        "format_penalty": -options.format_penalty * (off_form > 0),
        "discovery_bonus": options.discovery_bonus * parts["candidate_recall"],
        "document_cost": -options.document_cost * count,
        "invalid_curation_penalty": -options.invalid_curation_penalty * parts["refused_ids"],
        "unfinished_penalty": -options.unfinished_penalty * (stop_reason != "finish"),
    }
    if not count or stop_reason == "malformed":
        outcome = "empty" if not count else "malformed"
        corrections = dict.fromkeys(corrections, 0.0)
        reward = options.empty_penalty
    else:
        outcome = "none_relevant" if r == 0 else "complete" if r == 1 else "partial"
        reward = f + sum(corrections.values())
    return Score(max(MIN_REWARD, reward), {**parts, "f1": f_beta(p, r, 1.0), "f_beta": f, **corrections}, outcome)
