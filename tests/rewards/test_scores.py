"""What answers are worth: the published tables, and the word for how an episode ended."""

import itertools

import pytest

from jaxsearchrl.rewards.outcome import outcome
from jaxsearchrl.rewards.scores import FormatWeights, additive_score, annealed, penalised_score, structured_score

PUBLISHED = FormatWeights(structure=0.2, final=0.1, retrieval=0.0)
ALL_TERMS = FormatWeights(structure=0.2, final=0.1, retrieval=0.05)


@pytest.mark.parametrize(
    ("exact", "valid", "retrieved", "answered", "published", "all_terms"),
    [
        (True, True, False, True, 1, 1),
        (True, True, True, True, 1, 1),
        (True, False, False, True, 0.8, 0.8),
        (True, False, True, True, 0.8, 0.8),
        (False, True, True, True, 0.2, 0.25),
        (False, True, True, False, 0.2, 0.25),
        (False, True, False, True, 0.2, 0.2),
        (False, True, False, False, 0.2, 0.2),
        (False, False, False, True, 0.1, 0.1),
        (False, False, True, True, 0.1, 0.1),  # what was found pays with a valid format only
        (False, False, False, False, 0, 0),
        (False, False, True, False, 0, 0),
    ],
)
def test_structured_score(exact, valid, retrieved, answered, published, all_terms):
    assert structured_score(exact, valid, retrieved, answered) == pytest.approx(published)
    assert structured_score(exact, valid, retrieved, answered, PUBLISHED) == pytest.approx(published)
    assert structured_score(exact, valid, retrieved, answered, ALL_TERMS) == pytest.approx(all_terms)


def test_without_weights_the_score_is_the_exact_match():
    none = FormatWeights(0.0, 0.0, 0.0)
    for exact, valid, retrieved in itertools.product([False, True], repeat=3):
        assert structured_score(exact, valid, retrieved, True, none) == exact
        assert additive_score(exact, valid, 0.0) == exact
        assert penalised_score(exact, True, 0.0) == exact


@pytest.mark.parametrize(("exact", "valid", "score"), [(1, 1, 1.1), (1, 0, 1), (0, 1, 0.1), (0, 0, 0)])
def test_additive_score(exact, valid, score):
    assert additive_score(bool(exact), bool(valid)) == pytest.approx(score)


def test_penalised_score():
    assert penalised_score(True, True) == 1.0
    assert penalised_score(False, True) == 0.0
    assert penalised_score(False, False) == -0.1
    assert penalised_score(False, False, 0.5) == -0.5


def test_an_exact_match_needs_an_answer():
    with pytest.raises(ValueError, match="without an answer"):
        structured_score(True, True, True, answered=False)
    with pytest.raises(ValueError, match="without an answer"):
        penalised_score(True, answered=False)


@pytest.mark.parametrize(
    ("step", "steps", "weight"),
    [
        (0, 100, 0.2),
        (25, 100, 0.15),
        (100, 100, 0),
        (1000, 100, 0),
        (0, 0, 0.2),
        (1000, 0, 0.2),
        (0, 1, 0.2),
        (1, 1, 0),
    ],
)
def test_annealed(step, steps, weight):
    assert annealed(0.2, step, steps) == pytest.approx(weight)


def test_annealing_refuses_a_negative_step():
    for step, steps in ((-1, 10), (1, -10)):
        with pytest.raises(ValueError, match="negative"):
            annealed(0.2, step, steps)


@pytest.mark.parametrize(
    ("answer", "exact", "malformed", "word"),
    [
        ("Paris", True, False, "right"),
        ("Paris", True, True, "right"),  # the share of "right" is the exact-match score
        ("Lyon", False, False, "wrong"),
        ("Lyon", False, True, "malformed"),
        (None, False, False, "unanswered"),
        (None, False, True, "malformed"),
        ("", False, False, "empty"),
        (" \n\u00a0", False, False, "empty"),
        ("", False, True, "malformed"),
        ("the", False, False, "wrong"),  # no more than normalisation leaves, but not blank
    ],
)
def test_outcome(answer, exact, malformed, word):
    assert outcome(answer, exact, malformed) == word


@pytest.mark.parametrize("answer", [None, "", " "])
def test_a_blank_answer_is_never_right(answer):
    with pytest.raises(ValueError, match="exact match of"):
        outcome(answer, True, False)
