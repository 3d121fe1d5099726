"""The score of an episode by tool calls, from the last turn's answer line."""

from collections.abc import Mapping, Sequence

from jaxsearchrl.config import SearchToolsConfig
from jaxsearchrl.messages import AssistantTurn
from jaxsearchrl.rewards.answer_line import answer_line
from jaxsearchrl.rewards.outcome import outcome
from jaxsearchrl.rewards.scores import penalised_score
from jaxsearchrl.rewards.text_match import cover_match, exact_match, gold_in_answer, unicode_normalised
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question


def score(
    task: Question,
    turns: Sequence[AssistantTurn],
    documents: Sequence[str],
    stop_reason: str,
    searches: int,
    options: SearchToolsConfig,
) -> Score:
    """documents: what searches showed the policy, as text.

    The reward is 1 for an exact match, 0 for another answer, `options.invalid_reward` without exactly one answer line
    in the last turn. Parts: exact, cover, gold_in_answer, format (one answer line), retrieved, searches, turns.
    Texts are compared with Unicode punctuation deleted, as in the published experiment.
    """
    answer = answer_line(turns[-1].text) if turns and stop_reason else None
    answered = bool(answer)
    exact = answered and exact_match(answer, task.answers, unicode_normalised)
    said = "\n".join(f"{turn.reasoning}\n{turn.text}" for turn in turns)
    parts = {
        "exact": float(exact),
        "cover": float(answered and cover_match(answer, task.answers, unicode_normalised)),
        "gold_in_answer": float(gold_in_answer(said, task.answers, unicode_normalised)),
        "format": float(answered),
        "retrieved": float(any(cover_match(text, task.answers, unicode_normalised) for text in documents)),
        "searches": float(searches),
        "turns": float(len(turns)),
        "empty": float(not answered),
    }
    word = outcome(answer, exact, malformed=stop_reason == "invalid")
    return Score(worth(parts, options), parts, word)


def worth(parts: Mapping[str, float], options: SearchToolsConfig) -> float:
    """The reward of an episode that came to `parts` (those of `score`)."""
    return penalised_score(parts["exact"] > 0, not parts["empty"], -options.invalid_reward)
