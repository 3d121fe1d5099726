"""The score of a sum: whether its number is right."""

from collections.abc import Mapping

from jaxsearchrl.chat.tool_json import write_turn
from jaxsearchrl.messages import AssistantTurn
from jaxsearchrl.rewards.numeric import last_boxed, last_number, only_number, same_number
from jaxsearchrl.rewards.outcome import outcome
from jaxsearchrl.rewards.scores import additive_score
from jaxsearchrl.rewards.tags import format_valid, last_answer
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question


def score(task: Question, turn: AssistantTurn, format_weight: float) -> Score:
    r"""turn: the policy's; what counts is what it wrote, in its order.

    The answer is the only number within the last `<answer>` … `</answer>`; without the tags that within the last
    `\boxed{…}`; without either the last number of the turn. The reward is 1 if it equals a gold number, plus
    `format_weight` for `<think>` … `<answer>` … and nothing else. Parts: exact (the right number), tagged (within the
    tags), format.
    """
    text = turn.written or write_turn(turn)
    tagged = last_answer([text])
    given = last_boxed(text) if tagged is None else tagged
    answer = last_number(text) if given is None else only_number(given)
    exact = any(same_number(answer, gold) for gold in task.answers)
    valid = format_valid([text])
    parts = {
        "exact": float(exact),
        "tagged": float(tagged is not None),
        "format": float(valid),
        "empty": float(answer is None),
    }
    return Score(worth(parts, format_weight), parts, outcome(answer, exact, malformed=False))


def worth(parts: Mapping[str, float], format_weight: float) -> float:
    """The reward of an episode that came to `parts` (those of `score`)."""
    return additive_score(parts["exact"] > 0, parts["format"] > 0, format_weight)
