import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.search import snippets, words
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.search.snippets import _beginning, densest, window

_words = st.text(alphabet="ab \n.é", max_size=80)


def _same(word):
    return word.lower()


def test_a_short_text_is_shown_whole():
    assert window("all of it", 4, 220) == "all of it"
    assert densest("All of it", {"it"}, _same, 220) == "All of it"


def test_a_window_starts_a_third_before_the_match_at_a_word():
    text = "aaaa bbbb cccc dddd eeee MATCH ffff gggg hhhh iiii jjjj"
    # A third of 24 is 8: from position 17, inside "dddd", forward to the next word.
    assert window(text, text.index("MATCH"), 24) == "eeee MATCH ffff gggg"


def test_a_match_at_the_end_still_gets_a_full_window():
    text = "x" * 300 + " " + "y" * 90
    assert window(text, len(text) - 1, 90) == "y" * 90


def test_the_densest_place_wins_and_common_words_do_not_count_against_rare_ones():
    filler = "the of the of the " * 20
    text = filler + "revenue of Tesla" + " " + filler
    shown = densest(text, {"the", "of", "revenue", "tesla"}, _same, 60)
    assert "revenue of Tesla" in shown


def test_of_equal_places_the_first_is_shown():
    text = "owl mail " + "x " * 100 + "owl mail " + "x " * 100
    assert densest(text, {"owl", "mail"}, _same, 30).startswith("owl mail")


def test_without_a_match_the_start_is_shown():
    assert densest("one two three four", {"zebra"}, _same, 9) == "one two"


@settings(deadline=None)
@given(_words, st.integers(0, 80), st.integers(3, 40))
def test_a_window_is_part_of_the_text_and_fits(text, match, size):
    shown = window(text, min(match, len(text)), size)
    assert len(shown) <= size
    assert shown in text
    if match < len(text) and not text[match].isspace():
        assert text[match] in shown


@settings(deadline=None)
@given(_words, st.sets(st.text(alphabet="ab", min_size=1, max_size=3)), st.integers(12, 40))
def test_the_densest_window_shows_a_term_whenever_the_text_has_one(text, terms, size):
    shown = densest(text, terms, _same, size)
    assert len(shown) <= size
    found = [w for w in text.lower().replace("\n", " ").replace(".", " ").split() if w in terms and len(w) < 5]
    if found:
        assert any(term in shown for term in terms)


_ENDINGS = "s ies ied eed edly ing ingly y ational enci izer abli alli entli ousli ization alism iveness fulness iviti "
_ENDINGS += "biliti logi fulli lessli alize icate ical ative ness able ement ment ion ie e"


@settings(deadline=None, max_examples=1000)
@given(
    st.tuples(st.text(alphabet="abdeghilnoprstuvwyz019", max_size=7), *[st.sampled_from(["", *_ENDINGS.split()])] * 2)
    | st.sampled_from(["skies", "dying", "Idly", "YES", "ugly", "hopping", "news"])
)
def test_a_stem_begins_as_its_word_does(parts):
    word = "".join(parts)
    for term in words.analyser(IndexOptions()).analyze(word):
        assert word.lower().startswith(_beginning(term))


_LETTERS = "aeindsyfltoéßk"
_PLAIN = words.analyser(IndexOptions())
_FOLDED = words.analyser(IndexOptions(diacritics=True))


@settings(deadline=None, max_examples=1000)
@given(
    st.lists(st.text(alphabet="aeindsyfltAESoéÉß\u0131İK\u212a\u017fΣςﬁ日x1'-_ \n", max_size=9), max_size=30).map(
        " ".join
    ),
    st.lists(st.text(alphabet="aeindsyfltéßkio", max_size=5), max_size=6).map(" ".join),
    st.sampled_from([_PLAIN, _FOLDED]),
    st.integers(3, 60),
)
def test_the_words_looked_up_are_all_that_matter(text, query, analyser, size):
    def term_of(word):
        found = analyser.analyze(word)
        return found[0] if len(found) == 1 else ""

    terms = set(analyser.analyze(f"{query} {text[:9]}"))
    shown = densest(text, terms, term_of, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snippets, "_word_starts", lambda text, terms: [m.start() for m in re.finditer(r"[^\W_]+", text)])
        assert densest(text, terms, term_of, size) == shown


def test_words_are_told_apart_by_underscores_and_accents_are_no_first_letters():
    text = "x_owl " + "filler " * 40 + "Éclair OWLS " + "filler " * 40
    term_of = {"owl": "owl", "OWLS": "owl", "Éclair": "eclair"}.get
    assert "x_owl" in densest(text, {"owl"}, lambda word: term_of(word, word), 30)
    assert "Éclair OWLS" in densest(text, {"owl", "eclair"}, lambda word: term_of(word, word), 30)
