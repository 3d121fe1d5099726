r"""Numbers in answers: where GSM8K's solutions keep them, and when two of them are equal.

A solution is read strictly (`#### 72`), flexibly (the last number) or by its box (`\boxed{72}`). What is found is text
as it was written; `same_number` compares. The first two readings are verl's (Apache-2.0), as they stand in Search-R1.

No text raises, and every function takes one pass: patterns have one way to match a run of digits, dots and commas.
"""

import re
from decimal import Decimal

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
# A hyphen after a digit is a dash ("3-5"). A dot starts a number (".5") unless it ends something ("No.5", "...5").
_TOKEN = re.compile(r"(?:((?<!\d)[-\u2212])(?:\\?\$)?)?((?:(?<![\w.])\.)?\d(?:[\d.,]*\d)?)")
_VALUE = re.compile(r"([-+\u2212]?)(?:\\?\$)?(?=\.?\d)((?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?)(?:\\?%)?")
_LATEX_SPACE = re.compile(r"(?<=[\d,])(?:\\[!,;: ]|\{,\})(?=\d{3}(?!\d))")
_BRACE = re.compile(r"\\boxed\{|\\?[{}]")


def strict_number(text: str) -> str | None:
    """What follows the first `#### `, commas removed; None if that is no number.

    The strict reading as published: first match (newer versions take the last), one space, ASCII digits, no `$` before
    them; a final dot stays ("72."). Only a match without any digit ("#### ,"), there an answer, is none here.
    """
    match = _STRICT.search(text)
    return match[1].replace(",", "") if match and re.search("[0-9]", match[1]) else None


def last_number(text: str) -> str | None:
    """The text's last number, with its sign, as written ("1,000"); None without one.

    The flexible reading, mended: published, a lone comma is a number, a sentence's full stop stays, the signs of "-$5"
    and of U+2212 are lost, and "10-5" ends in "-5". Kept: a run of digits, dots and commas is one token even if it is
    no number ("3,14"), and letters only part tokens ("1e9" ends in "9").
    """
    found = _TOKEN.findall(text)
    return "".join(found[-1]) if found else None


def only_number(text: str) -> str | None:
    r"""The number that a text given as an answer holds beside words and units ("$5 a day"), as `last_number` writes it.

    None where there are several ("1/2", "10:30", "1.5e3", `\frac{36}{2}`): which one is meant would be a guess. LaTeX's
    ways to part thousands (`1{,}000`, `1\,000`) and a space behind a leading minus are read.
    """
    text = _LATEX_SPACE.sub(lambda space: "," if space[0] == "{,}" else "", text).strip()
    if text[:1] in ("-", "\u2212"):
        text = text[0] + text[1:].lstrip()
    found = _TOKEN.findall(text)
    return "".join(found[0]) if len(found) == 1 else None


def last_boxed(text: str) -> str | None:
    r"""What stands in the last complete `\boxed{…}`, stripped ("" if blank); None without one.

    Braces are balanced, so `\boxed{\frac{1}{2}}` is whole; escaped ones (`\{`) do not count. Last means opened last: of
    a box in a box, the inner one. A box that never closes is none.
    """
    opened: list[int | None] = []  # where a box's content starts, None for another brace
    last, content = -1, None
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(None)
        elif brace[0] == r"\boxed{":
            opened.append(brace.end())
        elif brace[0] == "}" and opened:
            start = opened.pop()
            if start is not None and start > last:
                last, content = start, text[start : brace.start()].strip()
    return content


def numeric_value(text: str) -> Decimal | None:
    """The number that the whole text is, exactly; None if it is none.

    Accepted are a sign, `$` before it and `%` after it (also as LaTeX writes them), thousands in groups of three, and
    a final full stop; digits may be of any script. Units do not count: "50%" is 50, since GSM8K's answers have none.
    Exponents ("1e999"), fractions, a decimal comma ("3,14") and further words make it no number.
    """
    match = _VALUE.fullmatch(text.strip().removesuffix("."))
    if not match:
        return None
    sign, digits = match.groups()
    return Decimal(sign.replace("\N{MINUS SIGN}", "-") + digits.replace(",", ""))


def same_number(prediction: str | None, gold: str) -> bool:
    """Whether both texts are numbers and these are equal: "18.0" and "18", "$1,000." and "1000".

    A text that is no number, and an answer that is not there (None), equal nothing, each other included.
    """
    value = numeric_value(prediction) if prediction is not None else None
    return value is not None and value == numeric_value(gold)


def gsm8k_gold(answer: str) -> str:
    """The gold number of GSM8K's answer text (Cobbe et al., 2021, arXiv:2110.14168), without comma, `$` and final dot.

    Raises ValueError unless exactly one `####` stands there, followed by a number and nothing else.
    """
    _, *after = answer.split("####")
    if len(after) != 1 or numeric_value(after[0]) is None:
        raise ValueError(f"the answer does not end in one #### and a number: {answer[-100:]!r}")
    return after[0].strip().replace(",", "").replace("$", "").removesuffix(".")
