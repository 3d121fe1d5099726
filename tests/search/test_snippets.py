from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.search import words
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.search.snippets import densest, window

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


@settings(deadline=None, max_examples=300)
@given(
    st.text(alphabet="abeisydgnlkrtu019", min_size=1, max_size=12) | st.sampled_from(["skies", "dying", "Idly", "YES"])
)
def test_a_stem_begins_as_its_word_does(word):
    # densest() leaves out words by their first letter
    assert all(term[0] == word[0].lower() for term in words.analyser(IndexOptions()).analyze(word))


def test_words_are_told_apart_by_underscores_and_accents_are_no_first_letters():
    text = "x_owl " + "filler " * 40 + "Éclair OWLS " + "filler " * 40
    term_of = {"owl": "owl", "OWLS": "owl", "Éclair": "eclair"}.get
    assert "x_owl" in densest(text, {"owl"}, lambda word: term_of(word, word), 30)
    assert "Éclair OWLS" in densest(text, {"owl", "eclair"}, lambda word: term_of(word, word), 30)
