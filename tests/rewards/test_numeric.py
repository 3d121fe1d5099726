"""Numbers by hand-worked rows, published quirks included."""

import random
from decimal import Decimal

import pytest

from jaxsearchrl.rewards.numeric import (
    gsm8k_gold,
    last_boxed,
    last_number,
    numeric_value,
    only_number,
    same_number,
    strict_number,
)

READINGS = (strict_number, last_number, last_boxed, numeric_value, only_number)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("... so 9 * 8 = 72\n#### 72", "72"),
        ("#### 5 and then #### 6", "5"),  # the first
        ("#### -1,234.50", "-1234.50"),
        ("#### 72.", "72."),
        ("#### 18 dollars", "18"),
        ("#### $18", None),
        ("####18", None),
        ("####  18", None),
        ("### 18", None),
        ("##### 18", "18"),
        ("the answer is 72", None),
        ("#### ,", None),  # published: ""
        ("#### .", None),
        ("#### -", None),
        ("#### ,.\n#### 5", None),  # the first is none
        ("#### \u0661\u0668", None),
        ("#### \u221218", None),
        ("", None),
    ],
)
def test_strict_number(text, number):
    assert strict_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It takes 3 days and 18 hours.", "18"),
        ("18.0.", "18.0"),
        ("1,000, I think", "1,000"),
        ("18, or so,", "18"),  # a lone comma is no number
        ("18 , .", "18"),
        ("that is -5", "-5"),
        ("that is \u22125", "\u22125"),
        ("that is -$5", "-5"),
        ("that is $5", "5"),
        ("10-5", "5"),
        ("about 3-5", "5"),
        ("between -3 and -5%", "-5"),
        (".5", ".5"),
        ("$.50", ".50"),
        ("-.5", "-.5"),
        ("No.5", "5"),
        ("wait...5", "5"),
        ("1/2", "2"),
        ("3,14", "3,14"),  # one token, though no number
        ("(1,2)", "1,2"),
        ("1e999", "999"),
        ("x2y", "2"),
        ("答案是18。", "18"),
        ("m\u00b2", None),  # a superscript is no digit
        ("\u0661\u0668", "\u0661\u0668"),
        (",", None),
        (".", None),
        ("-", None),
        ("$", None),
        ("", None),
        ("\ud8005\udc00", "5"),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", "72"),
        (" $5 a day.", "5"),
        (r"72 \text{ clips}", "72"),
        ("- 5", "-5"),
        ("\u2212 5", "\u22125"),
        (r"1{,}000", "1,000"),
        (r"1,\!000", "1,000"),
        (r"1\,000", "1000"),
        (r"1{,}234{,}567", "1,234,567"),
        (r"3\;4", None),
        (r"10\:30", None),
        ("50%", "50"),
        ("1/2", None),
        (r"\frac{36}{2}", None),
        ("1.5e3", None),
        ("10:30", None),
        ("1 000", None),
        ("3 or 4", None),
        ("5 - 3", None),
        ("a lot", None),
        ("", None),
    ],
)
def test_only_number(text, number):
    assert only_number(text) == number


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{72}.", "72"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed{\}", None),
        (r"\boxed{1} \boxed{2", "1"),  # the last complete one
        (r"\boxed{1 \boxed{2}", "2"),
        (r"\boxed{1 \boxed{2} 3}", "2"),  # opened last
        (r"\boxed{\boxed{1} \boxed{2}}", "2"),
        (r"} } \boxed{3} }", "3"),
        (r"{ { \boxed{3}", "3"),
        (r"\\boxed{4}", "4"),  # one backslash too many
        (r"\frac{1}{2}", None),
        (r"\boxed{}", ""),
        (r"\boxed{ }", ""),
        (r"\boxed 5", None),
        (r"\fbox{5}", None),
        ("boxed{5}", None),
        ("", None),
        ("\\", None),
    ],
)
def test_last_boxed(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18),
        (" 18.0\n", 18),
        ("18.", 18),
        ("018", 18),
        ("-0", 0),
        ("+5", 5),
        (".5", Decimal("0.5")),
        ("0.1", Decimal("0.1")),
        ("1,000", 1000),
        ("1,000,000.50", Decimal("1000000.5")),
        ("$5", 5),
        ("-$5", -5),
        (r"\$5", 5),
        ("50%", 50),
        (r"50\%", 50),
        ("50%.", 50),
        ("\u22125", -5),
        ("\u0661\u0668", 18),
        ("\uff11\uff18", 18),
        ("3,14", None),
        ("1,00", None),
        ("1000,000", None),
        (",000", None),
        ("1,", None),
        ("18..", None),
        ("1.2.3", None),
        ("1/2", None),
        ("1e3", None),
        ("1e999", None),
        ("1e99999999999999999999", None),
        ("5 dollars", None),
        ("$", None),
        ("%", None),
        ("-", None),
        (".", None),
        (",", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("0x10", None),
        ("\u00b2", None),
        ("\u00bd", None),
        ("\ud800", None),
    ],
)
def test_numeric_value(text, value):
    assert numeric_value(text) == value


@pytest.mark.parametrize(
    ("prediction", "gold", "same"),
    [
        ("18.0", "18", True),
        ("1,000", "1000", True),
        ("$5", "5", True),
        ("72.", "72", True),
        ("50%", "50", True),
        ("50%", "0.5", False),
        ("10", "1.0", False),  # both pairs are equal after SQuAD's normalisation
        ("314", "3.14", False),
        ("1", "1.0", True),  # and this one is not
        ("3,14", "314", False),
        ("-18", "18", False),
        ("Paris", "Paris", False),  # nothing does not equal nothing
        ("", "", False),
        (None, "18", False),
        (None, "", False),
        ("9" * 5000, "9" * 5000 + ".0", True),  # more digits than int() takes
        ("9" * 5000, "9" * 4999 + "8", False),
        ("-" + "9" * 50, "-" + "9" * 49 + "8", False),  # more than a decimal context keeps
        ("0.1", "0.10000000000000000001", False),
    ],
)
def test_same_number(prediction, gold, same):
    assert same_number(prediction, gold) is same
    if prediction is not None:
        assert same_number(gold, prediction) is same


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("She sold 48/2 = <<48/2=24>>24 in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72", "72"),
        ("#### 1,000", "1000"),
        ("#### -3 ", "-3"),
        ("####0.5", "0.5"),
        ("#### $1,000.", "1000"),
        ("#### .5", ".5"),
    ],
)
def test_gold_of_gsm8k(answer, gold):
    assert gsm8k_gold(answer) == gold


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "72",
        "####",
        "#### ,",
        "#### seventy",
        "#### 1 #### 2",
        "#### 72 clips",
        "#### 3,14",
        "#### 5$5",
        "#### 1,,2",
        "#### 5..",
    ],
)
def test_an_answer_text_without_one_gold_is_refused(answer):
    with pytest.raises(ValueError, match="####"):
        gsm8k_gold(answer)


def test_no_text_raises():
    rng = random.Random(0)
    pieces = [*"0127.,-+$%{}\\ #\n", "#### ", r"\boxed{", "\u2212", "\u0663", "\u00b2", "\ud800", "e9", "北"]
    for _ in range(5000):
        text = "".join(rng.choices(pieces, k=rng.randrange(12)))
        found = [reading(text) for reading in READINGS]
        assert found[1] is None or found[1] in text.replace("$", "").replace("\\", "")
        assert found[2] is None or r"\boxed{" in text


def test_a_megabyte_is_read_in_one_pass():
    """What takes the square of a text's length does not end here."""
    for piece in ("9", ",", "9,", "9.", ",999", "1 ", "-", "$", "#### ", r"\boxed{", r"\boxed{}", "\\"):
        text = "1" + piece * (10**6 // len(piece)) + "x"
        assert same_number(text, "5") is False
        strict_number(text)
        last_number(text)
        last_boxed(text)
        numeric_value(text[:-1])
        only_number(text)
