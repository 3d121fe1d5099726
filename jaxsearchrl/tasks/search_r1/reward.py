"""The score of a Search-R1 episode, from the policy's own turns."""

from collections.abc import Mapping, Sequence

from jaxsearchrl.config import SearchR1Config
from jaxsearchrl.rewards.outcome import outcome
from jaxsearchrl.rewards.scores import additive_score, structured_score
from jaxsearchrl.rewards.tags import format_valid
from jaxsearchrl.rewards.text_match import cover_match, exact_match, gold_in_answer
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question


def score(
    task: Question,
    answer: str | None,
    turns: Sequence[str],
    documents: Sequence[str],
    invalid_actions: int,
    searches: int,
    options: SearchR1Config,
    format_weight: float,
) -> Score:
    """answer: what ended the episode, None without one. turns: all that the policy said, one text each. documents: what
    searches showed it, as text. invalid_actions: turns without an action.

    The reward is 1 for a right answer (as `options.match` compares), plus `format_weight` for the form, or the
    published structured score. Parts: exact, cover, gold_in_answer (anywhere in the policy's text), format (whether
    all turns have the form), retrieved (a gold stands in a document shown), searches, invalid_actions, turns.
    """
    answered = answer is not None
    exact = answered and exact_match(answer, task.answers)
    cover = answered and cover_match(answer, task.answers)
    valid = format_valid(turns)
    retrieved = any(cover_match(document, task.answers) for document in documents)
    parts = {
        "exact": float(exact),
        "cover": float(cover),
        "gold_in_answer": float(gold_in_answer("\n".join(turns), task.answers)),
        "format": float(valid),
        "retrieved": float(retrieved),
        "searches": float(searches),
        "invalid_actions": float(invalid_actions),
        "turns": float(len(turns)),
        "empty": float(not answered),
    }
    return Score(
        worth(parts, options, format_weight),
        parts,
        outcome(answer, exact, malformed=not answered and invalid_actions > 0),
    )


def worth(parts: Mapping[str, float], options: SearchR1Config, format_weight: float) -> float:
    """The reward of an episode that came to `parts` (those of `score`)."""
    right, valid = parts["exact" if options.match == "exact" else "cover"] > 0, parts["format"] > 0
    if options.format_reward == "structured":
        return structured_score(right, valid, parts["retrieved"] > 0, not parts["empty"])
    return additive_score(right, valid, format_weight)
