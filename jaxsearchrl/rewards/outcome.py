"""The outcome words of tasks that ask for an answer. An infrastructure failure has no outcome: it is never scored."""

from typing import Literal

Outcome = Literal["right", "wrong", "empty", "unanswered", "malformed"]


def outcome(answer: str | None, exact: bool, malformed: bool) -> Outcome:
    """One word for how an episode ended. malformed: it ended by a turn that broke the task's format.

    The first that holds:
    "right": an exact match, in whatever format, so that the share of "right" is the exact-match score;
    "malformed": what the broken turn holds, or does not, is no further news;
    "unanswered": there is no answer (None);
    "empty": an answer that is blank after stripping;
    "wrong": any other.

    Raises ValueError for an exact match of no answer or a blank one.
    """
    blank = answer is None or not answer.strip()
    if exact and blank:
        raise ValueError(f"an exact match of {answer!r}")
    if exact:
        return "right"
    if malformed:
        return "malformed"
    if answer is None:
        return "unanswered"
    return "empty" if blank else "wrong"
