"""Normalisation and matching by hand-worked rows, published quirks included. Whoever normalises twice sees it here."""

import random
import string

import pytest

from jaxsearchrl.rewards.text_match import (
    cover_match,
    exact_match,
    gold_in_answer,
    squad_normalised,
    unicode_normalised,
)

MATCHES = (exact_match, cover_match, gold_in_answer)


@pytest.mark.parametrize(
    ("text", "squad", "by_category"),
    [
        ("", "", ""),
        ("  Paris \n\t France ", "paris france", "paris france"),
        ("The Cat and an Apple, a Pear!", "cat and apple pear", "cat and apple pear"),
        ("the", "", ""),
        ("A An THE", "", ""),
        ("theatre Anne", "theatre anne", "theatre anne"),
        ("U.S.", "us", "us"),  # punctuation is deleted, not spaced
        ("well-known", "wellknown", "wellknown"),
        ("a.n", "", ""),  # punctuation first: what it leaves is an article
        ("the_cat", "thecat", "thecat"),  # as is "_", so that no article is left
        ("what's the\u00a0time", "whats time", "whats time"),  # a no-break space is whitespace
        ("$5 + 5 < 11 = ^`|~", "5 5 11", "$5 + 5 < 11 = ^`|~"),
        ("“curly” ‘quotes’", "“curly” ‘quotes’", "curly quotes"),  # noqa: RUF001
        ("1914–1918", "1914–1918", "19141918"),  # noqa: RUF001
        ("full！stop。", "full！stop。", "fullstop"),  # noqa: RUF001
        ("ＡＢＣ", "ａｂｃ", "ａｂｃ"),  # noqa: RUF001
        ("北京。", "北京。", "北京"),
        ("Café", "café", "café"),
        ("Cafe\u0301", "cafe\u0301", "cafe\u0301"),  # composed and decomposed stay different
        ("a\u0300 la", "\u0300 la", "\u0300 la"),  # the letter alone is an article to \b
        ("İstanbul", "i\u0307stanbul", "i\u0307stanbul"),
        ("ISPARTA", "isparta", "isparta"),  # with a dot
        ("Straße", "straße", "straße"),  # lower case, not case folding
        ("half \ud800 pair", "half \ud800 pair", "half \ud800 pair"),
        (string.punctuation, "", "$+<=>^`|~"),
    ],
)
def test_normalisation(text, squad, by_category):
    assert squad_normalised(text) == squad
    assert unicode_normalised(text) == by_category


def test_a_normalised_text_stays_as_it_is():
    rng = random.Random(0)
    alphabet = "aAnNtThHeE .,-_'\"$+ İıſΣς\u0301“”–é北\ud800\x1c\u00a0"  # noqa: RUF001
    for _ in range(2000):
        text = "".join(rng.choices(alphabet, k=rng.randrange(12)))
        for normalise in (squad_normalised, unicode_normalised):
            assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize(
    ("prediction", "golds", "exact", "cover"),
    [
        ("Paris", ["Paris"], True, True),
        ("the paris!", ["Paris"], True, True),
        ("The U.S.!", ["US"], True, True),
        ("Paris, France", ["Paris"], False, True),
        ("Paris", ["Paris, France"], False, False),  # cover goes one way
        ("Lyon", ["Paris"], False, False),
        ("NYC", ["New York City", "New York", "NYC"], True, True),  # any alias
        ("NYC", ("London", "New York"), False, False),
        ("Russia", ["US"], False, True),  # published: characters, not words
        ("New-York", ["New York"], False, False),
        ("", ["Paris"], False, False),
        ("  ", ["Paris"], False, False),
        # Published, a gold of articles equals every empty answer and is part of every answer.
        ("", ["The The"], False, False),
        ("...", ["The The"], False, False),
        ("Blur", ["The The"], False, False),
        ("the the", ["The  The"], True, True),
        ("The", ["A"], False, False),
        ("a", ["A"], True, True),
        ("Vitamin A", ["A"], False, False),
        ("C++", ["C"], True, True),
        ("?!", ["?!"], True, True),
        ("", [""], False, False),  # nothing does not equal nothing
        ("Paris", [""], False, False),
        ("Paris", ["", "Paris"], True, True),
        # Published: numbers are words.
        ("10", ["1.0"], True, True),
        ("314", ["3.14"], True, True),
        ("1", ["1.0"], False, False),
        ("1,000", ["1000"], True, True),
        ("北京市", ["北京"], False, True),
        ("Cafe\u0301", ["Café"], False, False),
        ("\ud800", ["\ud800"], True, True),
    ],
)
def test_matches(prediction, golds, exact, cover):
    assert exact_match(prediction, golds) is exact
    assert cover_match(prediction, golds) is cover


@pytest.mark.parametrize(
    ("prediction", "gold", "squad", "by_category"),
    [
        ("“Paris”", "Paris", False, True),
        ("1914–1918", "1914-1918", False, True),  # noqa: RUF001
        ("$5", "5", True, False),
        ("C+", "C", True, False),
    ],
)
def test_prediction_and_golds_take_the_same_normalisation(prediction, gold, squad, by_category):
    for one, other in ((prediction, gold), (gold, prediction)):
        assert exact_match(one, [other], squad_normalised) is squad
        assert exact_match(one, [other], unicode_normalised) is by_category
    assert cover_match(prediction, [gold], unicode_normalised) is (by_category or prediction == "$5" or gold == "C")
    assert cover_match(gold, [prediction], unicode_normalised) is by_category


@pytest.mark.parametrize("normalise", [squad_normalised, unicode_normalised])
def test_exact_match_is_symmetric_and_implies_cover(normalise):
    rng = random.Random(1)
    words = ["the", "A", "an", "Paris", "paris.", "$", "–", "!", "", "U.S.", "us"]  # noqa: RUF001
    seen = set()
    for _ in range(3000):
        one, other = (" ".join(rng.choices(words, k=rng.randrange(4))) for _ in range(2))
        exact = exact_match(one, [other], normalise)
        assert exact == exact_match(other, [one], normalise)
        assert exact_match(one, [one], normalise) == bool(one.strip())
        assert not exact or cover_match(one, [other], normalise)
        seen.add(exact)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("text", "golds", "found"),
    [
        ("<think>It is Paris.</think><answer>Lyon</answer>", ["Paris"], True),
        ("<think>no idea</think><answer>Lyon</answer>", ["Paris"], False),
        ("<answer>Paris", ["Paris"], True),  # whatever the format
        ("<search>x</search><answer>y</answer>", ["answer"], False),  # markup is not text
        ("<think>x</think><search>y</search>", ["search", "think", "information"], False),
        ("New<answer>York</answer>", ["New York"], True),  # a tag parts words
        ("New</think>York", ["NewYork"], False),
        ("Answer: Paris", ["answer"], True),
        ("", ["the"], False),
        ("anything at all", ["the"], False),
    ],
)
def test_gold_in_answer(text, golds, found):
    assert gold_in_answer(text, golds) is found


@pytest.mark.parametrize("match", MATCHES)
def test_golds_are_a_sequence_of_texts(match):
    for golds in ("Paris", "", [18], ["Paris", None]):
        with pytest.raises(TypeError):
            match("Paris", golds)
    with pytest.raises(ValueError, match="without gold"):
        match("Paris", [])


@pytest.mark.parametrize("match", MATCHES)
def test_a_megabyte_is_read_in_one_pass(match):
    for piece in ("the ", "<answer>", " ", "“\ud800"):
        assert not match(piece * (10**6 // len(piece)), ["Paris"])
    assert match("Paris" if match is exact_match else "Paris" + "x" * 10**6, ["x", "Paris"])
