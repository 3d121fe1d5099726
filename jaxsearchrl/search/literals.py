"""Which plain letters a text must hold for a regular expression to match it, for passing over text that cannot."""

import re
from dataclasses import dataclass

# Groups that capture, that do not, that have a name, and flags, with ":" for those that hold in the group alone.
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|[imsU-]*:))?(?!\?)")
_FLAGS = re.compile(r"\(\?[imsU-]+\)")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)
_REPEAT = re.compile(r"([*?]|\+|\{(\d+)(?:,\d*)?\})\??")
_ESCAPED_CLASS = re.compile(r"\\(?:[dDwWsSCbBAzntrfva]|[pP](?:\{\^?\w+\}|\w))")
_ESCAPED = re.compile(r"\\([^\w\s])", re.ASCII)


@dataclass(frozen=True)
class Required:
    """Every one of `literals` (lower-case ASCII), and of each group of `choices` at least one, must be in the text."""

    literals: tuple[str, ...] = ()
    choices: tuple[tuple["Required", ...], ...] = ()


NOTHING = Required()


def required(pattern: str) -> Required:
    """What a text, once its ASCII letters are lower case, holds wherever the RE2 pattern matches it, any case.

    Never too much: of syntax that is not known here nothing is required. Beyond ASCII, U+017F and U+212A must be read
    as s and k, which RE2 takes for cases of each other; no other character outside ASCII is looked at.
    """
    try:
        found, end = _alternatives(pattern, 0)
    except _Unknown:
        return NOTHING
    return found if end == len(pattern) else NOTHING


class _Unknown(Exception):
    """Syntax that is left to RE2."""


def _alternatives(pattern: str, at: int) -> tuple[Required, int]:
    branch, at = _sequence(pattern, at)
    branches = [branch]
    while pattern.startswith("|", at):
        branch, at = _sequence(pattern, at + 1)
        branches.append(branch)
    if len(branches) == 1:
        return branches[0], at
    return (Required(choices=(tuple(branches),)) if all(b != NOTHING for b in branches) else NOTHING), at


def _sequence(pattern: str, at: int) -> tuple[Required, int]:
    literals, choices, run = [], [], ""
    while at < len(pattern) and pattern[at] not in "|)":
        letter, inside, at = _atom(pattern, at)
        least = 1
        repeated = False
        while repeat := _REPEAT.match(pattern, at):
            repeated, at = True, repeat.end()
            least = min(least, 0 if repeat[1] in "*?" else int(repeat[2] or 1))
        if letter and least:
            run += letter
        if not letter or repeated:
            literals.append(run)
            run = ""
        if least:
            literals += inside.literals
            choices += inside.choices
    return Required(tuple(literal for literal in [*literals, run] if literal), tuple(choices)), at


def _atom(pattern: str, at: int) -> tuple[str, Required, int]:
    """(the letter that stands at `at`, or what a group there requires, where it ends)."""
    if escaped := _ESCAPED.match(pattern, at):
        return escaped[1], NOTHING, escaped.end()  # RE2 escapes no character outside ASCII
    if passed := _FLAGS.match(pattern, at) or _CLASS.match(pattern, at) or _ESCAPED_CLASS.match(pattern, at):
        return "", NOTHING, passed.end()
    if group := _GROUP.match(pattern, at):
        inside, end = _alternatives(pattern, group.end())
        if not pattern.startswith(")", end):
            raise _Unknown
        return "", inside, end + 1
    if pattern[at] in "\\([":
        raise _Unknown
    letter = pattern[at]
    return (letter.lower() if letter.isascii() and letter not in ".^$*+?" else ""), NOTHING, at + 1
