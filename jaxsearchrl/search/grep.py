"""Regular expressions over the whole corpus, by RE2: linear time, no back-tracking, and without Python's lock.

Where the pattern says letters that must be in the text, only the grains that have their grams are looked at (grams.py);
else, or where too many have them, all text is.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import re2

from jaxsearchrl.search.contract import MAX_PATTERN_CHARS, BadPattern
from jaxsearchrl.search.grams import Grams
from jaxsearchrl.search.literals import NOTHING, Required, required
from jaxsearchrl.search.store import DocumentStore
from jaxsearchrl.text import well_formed

# Where RE2's automaton does not fit in memory, it follows every position of the pattern at every byte. What it costs
# then grows with the instructions for one-byte characters: \w.{50}~ has 108 and takes 1.5 µs a byte; the slowest that
# we found below the limit, (?s)\w(.{8}e?){13}~, takes 3; \w.{190}~ would take 4 and \w(.?\w?){95}~~ 10. 160 letters
# are 164 instructions.
MAX_POSITIONS = 170
# Unicode classes make a program large (\p{L}+ has 1202 instructions) but hardly slower: this bounds memory.
MAX_PROGRAM = 2000
BLOCK_BYTES = 64 * 1024
MOST_SECONDS = 120.0  # of one search: seldom needed, but a hostile pattern would keep a large corpus busy for hours
MOST_GRAINS = 0.15  # of all: where more may match, the plain scan, which takes many documents at once, is as quick

# What \A and \z mean at a document's edge, and what turns (?m) off, cannot be seen in a block of many documents.
_NEEDS_EDGES = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-")
_UNSUPPORTED = re.compile(r"\(\?<?[=!]|\(\?>|\(\?P=|\\[1-9]|\\k|\\g|[+*?}]\+")


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern. `loose` matches a block of documents whenever `exact` matches one of them; None: no such.

    required: what a document must hold for `exact` to match.
    """

    exact: re2._Regexp
    loose: re2._Regexp | None
    required: Required = NOTHING


def compile_pattern(pattern: str, case_sensitive: bool) -> Pattern:
    """Raises BadPattern, with a message that the model can act on."""
    if not pattern:
        raise BadPattern("The pattern is empty. Give a word or a regular expression.")
    if len(pattern) > MAX_PATTERN_CHARS:
        raise BadPattern(f"The pattern has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed.")
    options = re2.Options()
    options.case_sensitive = case_sensitive
    options.log_errors = False
    source = well_formed(pattern).encode()
    try:
        exact = re2.compile(source, options)
        loose = None if _NEEDS_EDGES.search(pattern) else re2.compile(b"(?m)" + source, options)
    except re2.error as error:
        raise BadPattern(_refusal(pattern, error.args[0].decode("utf-8", "replace"))) from None
    if exact.programsize > MAX_PROGRAM or _positions(pattern, exact, options) > MAX_POSITIONS:
        raise BadPattern(
            "The pattern is too large once its repetition counts are expanded. Write .* in place of a counted "
            "repetition such as .{0,100}, or use counts up to 40; write [a-z] or \\w in place of \\p{L}."
        )
    return Pattern(exact, loose, required(pattern))


def _positions(pattern: str, exact: re2._Regexp, options: re2.Options) -> int:
    """Instructions of the pattern if each character were one byte, those beyond Latin-1 taken for its last."""
    options.encoding = re2.Options.Encoding.LATIN1
    one_byte = "".join(min(character, "\xff") for character in pattern).encode("latin-1")
    try:
        return re2.compile(one_byte, options).programsize
    except re2.error:  # an escape such as \x{2019}
        return exact.programsize


def matches(
    store: DocumentStore, blocks: list[int], pattern: Pattern, grams: Grams | None = None
) -> Iterator[tuple[int, int]]:
    """Yields (ordinal, byte position of the first match in the body) of each document that matches, in corpus order.

    blocks: `store.blocks(BLOCK_BYTES)`. One search passes over a whole block that holds no match. Raises BadPattern
    where it takes longer than MOST_SECONDS.
    """
    deadline = time.monotonic() + MOST_SECONDS
    grains = grams and grams.grains(pattern.required)
    if grams and grains is not None and len(grains) < MOST_GRAINS * len(grams.cuts):
        for grain in grains.tolist():
            _check(deadline)
            yield from _in_block(store, grams.cuts[grain], grams.cuts[grain + 1], pattern.exact)
        return
    for first, stop in pairwise(blocks):
        _check(deadline)
        if pattern.loose is None or pattern.loose.search(store.block(first, stop)[0]) is not None:
            yield from _in_block(store, first, stop, pattern.exact)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise BadPattern(
            f"The pattern takes more than {MOST_SECONDS:g} seconds over this corpus. Use one with a word that must be "
            "there, and without counted repetitions."
        )


def _in_block(store: DocumentStore, first: int, stop: int, exact: re2._Regexp) -> Iterator[tuple[int, int]]:
    block, starts = store.block(first, stop)
    for ordinal, (start, end) in enumerate(pairwise(starts), start=first):
        match = exact.search(block[start : end - 1])
        if match is not None:
            yield ordinal, match.start()


def _refusal(pattern: str, detail: str) -> str:
    if _UNSUPPORTED.search(pattern):
        return (
            f"The pattern is not supported ({detail}): the syntax is RE2, which has no look-ahead or look-behind, "
            "back-references, or possessive and atomic groups. Search for a simpler pattern."
        )
    if "\\Z" in pattern:
        return f"The pattern is not valid ({detail}): the syntax is RE2, where the end of the text is \\z."
    return f"The pattern is not a valid regular expression ({detail}). Escape special characters with a backslash."
