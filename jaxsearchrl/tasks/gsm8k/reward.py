"""The score of a sum: whether its number is right."""

from jaxsearchrl.messages import AssistantTurn
from jaxsearchrl.rewards.numeric import last_boxed, last_number, same_number
from jaxsearchrl.rewards.outcome import outcome
from jaxsearchrl.rewards.scores import additive_score
from jaxsearchrl.rewards.tags import format_valid, last_answer
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.questions import Question


def score(task: Question, turn: AssistantTurn, format_weight: float) -> Score:
    r"""turn: the policy's, its reasoning read out of `<think>` … `</think>`.

    The answer is the last number within `<answer>` … `</answer>`; without the tags that of the last `\boxed{…}`, or of
    the whole turn. The reward is 1 if it equals a gold number, plus `format_weight` for `<think>` … `<answer>` … and
    nothing else. Parts: exact (the right number), tagged (within the tags), format.
    """
    text = f"<think>{turn.reasoning}</think>{turn.text}" if turn.reasoning else turn.text
    tagged = last_answer([text])
    boxed = last_boxed(text)
    answer = last_number(next((part for part in (tagged, boxed) if part is not None), text))
    exact = any(same_number(answer, gold) for gold in task.answers)
    valid = format_valid([text])
    parts = {
        "exact": float(exact),
        "tagged": float(tagged is not None),
        "format": float(valid),
        "empty": float(answer is None),
    }
    return Score(additive_score(exact, valid, format_weight), parts, outcome(answer, exact, malformed=False))
