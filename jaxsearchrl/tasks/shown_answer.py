"""Which answer a scripted expert of a search task gives."""

from collections.abc import Sequence

from jaxsearchrl.messages import Message
from jaxsearchrl.rewards.text_match import cover_match
from jaxsearchrl.tasks.questions import Question

UNKNOWN = "unknown"


def shown_answer(task: Question, messages: Sequence[Message], play: str) -> str:
    """The first accepted answer that stands in what was shown (prompt included), UNKNOWN where none does.

    play: the family's; where no documents are to be had ("direct"), the first of all.
    """
    if play == "direct":
        return task.answers[0]
    shown = "\n".join(message.content for message in messages if message.role in ("tool", "user"))
    return next((answer for answer in task.answers if cover_match(shown, [answer])), UNKNOWN)
