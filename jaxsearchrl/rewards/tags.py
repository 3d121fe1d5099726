"""Search-R1's tags in what the policy wrote: its answer, and whether it kept the format.

`<think>`, `<search>` and `<answer>` are the policy's, `<information>` is the environment's (Jin et al., 2025,
arXiv:2503.09516). Functions take the policy's turns, one text each as sampled, without a spelled end token. What the
environment says is never passed in, so it cannot pay. The published code reads one string of prompt, policy and
environment: the prompt's example is its first answer, so that a lone answer counts as none there, and a reply of the
environment that quotes the tags is taken for an answer. Here one answer is enough.

Tags are exact: other case, spaces or attributes make plain text. Every function takes one pass.
"""

import re
from collections.abc import Sequence

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_ANSWER_TAG = re.compile(r"</?answer>")


def last_answer(turns: Sequence[str]) -> str | None:
    """The last complete `<answer>…</answer>` of the turns, stripped ("" if blank); None without one.

    As published, other tags do not matter here: an answer inside an unclosed `<think>` counts (`format_valid` is what
    objects), and of `<answer>a<answer>b</answer>` the first opening counts, so that the answer is `a<answer>b`. An
    opening without its closing, and a closing without its opening, are no answer. A turn's answer ends with the turn:
    between turns the environment speaks.
    Raises TypeError for one bare text.
    """
    found = (_last_answer(turn) for turn in reversed(_checked(turns)))
    return next((answer for answer in found if answer is not None), None)


def format_valid(turns: Sequence[str]) -> bool:
    """Whether the turns are start → think → (search → think)* → answer → end, one action a turn.

    Each turn is `<think>…</think><search>…</search>`, the last one has `<answer>…</answer>` instead; only whitespace
    stands around and between. No tag stands inside another, and `<information>` nowhere. Contents may be empty, as
    published. Where the prompt itself opens `<think>`, the caller puts it in front of the turn.
    Raises TypeError for one bare text.
    """
    actions = [_action(turn) for turn in _checked(turns)]
    return bool(actions) and actions == ["search"] * (len(actions) - 1) + ["answer"]


def without_tags(text: str) -> str:
    """The text with each of the tags replaced by a space, so that neighbours do not become one word."""
    return _TAG.sub(" ", text)


def _last_answer(turn: str) -> str | None:
    answer, start = None, None
    for tag in _ANSWER_TAG.finditer(turn):
        if tag[0] == "<answer>":
            start = tag.end() if start is None else start
        elif start is not None:
            answer, start = turn[start : tag.start()].strip(), None
    return answer


def _action(turn: str) -> str | None:
    """The turn's only action, "search" or "answer"; None for a turn of another form."""
    parts = _TAG.split(turn)  # texts at even places, tags at odd ones; of a good turn 0, 4 and 8 lie outside of tags
    for action in ("search", "answer"):
        if parts[1::2] == ["<think>", "</think>", f"<{action}>", f"</{action}>"] and not "".join(parts[::4]).strip():
            return action
    return None


def _checked(turns: Sequence[str]) -> Sequence[str]:
    if isinstance(turns, str):
        raise TypeError("turns are a sequence of texts, one for each turn of the policy; this is one text")
    return turns
