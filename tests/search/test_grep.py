import json
import random
from itertools import pairwise

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.search import grams, grep
from jaxsearchrl.search.contract import BadPattern, Document
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.search.store import DocumentStore, write_store

_TEXTS = ["", "a", "b a", "ab\nab", "A-b.", "\na", "a\n", "éa b", "x \0 b", "aXb", "10-K of 2019", "\n\n", "zzz a zzz"]


def _scan(bodies, pattern, case_sensitive=False):
    options = re2.Options()
    options.case_sensitive = case_sensitive
    options.log_errors = False
    compiled = re2.compile(pattern.encode(), options)
    return [n for n, body in enumerate(bodies) if compiled.search(body)]


def _ids(hits):
    return [hit.document.id for hit in hits]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    write_store(folder, [Document(str(n), "T" * (n % 3), text) for n, text in enumerate(_TEXTS * 3)])
    return DocumentStore(folder)


_PIECES = [
    *[
        "a",
        "b",
        "é",
        ".",
        "^",
        "$",
        r"\A",
        r"\z",
        r"\b",
        r"\B",
        r"\n",
        "\n",
        r"\s",
        "[^a]",
        "[^x]*",
        "T",
        r"\Qa",
        r"\C",
    ],
    *["(?s)", "(?m)", "(?-m)", "(?-s:.)", "(?i)", "(?m:^)", "(?i-m:$)", "(a|^b)", "|", "*", "+?", "{2}", r"\d+", "()"],
]
_patterns = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join)


@given(_patterns, st.integers(1, 60), st.booleans())
@settings(max_examples=400, deadline=None)
def test_grep_equals_scanning_each_document(store, pattern, block_bytes, case_sensitive):
    try:
        compiled = grep.compile_pattern(pattern, case_sensitive)
    except BadPattern:
        return
    found = [ordinal for ordinal, _ in grep.matches(store, store.blocks(block_bytes), compiled)]
    assert found == _scan([store.body(n) for n in range(len(store))], pattern, case_sensitive)


_WORDS = [
    *["owl", "OWLS", "sky", "\u017fk\u0131", "\u212aelvin", "KELVIN", "10-K"],
    *["é", "ß", "a.b", "x_y", "\n", " ", "\0", "(a)"],
]
_SYNTAX = [
    *["owl", "kelvin", "sk", "sky", "s", "k", "10-K", r"a\.b", r"\.", r"\(a\)", "x_y", r"\d", r"\w+", ".", "[a-z]"],
    *["[^]k]", "é", "[[:alpha:]k]", r"\pL", r"\p{L}", r"\x6b", r"\Qk.\E", "(?i)", "(?-i)", "(?i:", "(?P<n>", "(?:"],
    *["(", ")", "|", "*", "?", "+", "{0}", "{0,2}", "{1,}", "{2}", "{", "}", "]", "^", "$", r"\b", r"\z", r"\n", "\0"],
    *["(?U)", "(?:sky)?", "owlx?", "(sky)*", "(owl|sky|)", "skyy{0,1}", "(?:owl)+", "(10-K){2}"],
]


@pytest.fixture(scope="module")
def grains(tmp_path_factory):
    """Documents of a few words in grains of some 40 bytes, and the filter over them."""
    folder, draw = tmp_path_factory.mktemp("grains"), random.Random(1)
    texts = ["".join(draw.choices(_WORDS, k=draw.randint(0, 6))) for _ in range(300)]
    write_store(folder, [Document(str(n), "", text) for n, text in enumerate(texts)])
    store = DocumentStore(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grams, "GRAIN_BYTES", 40)
        patch.setattr(grams, "GROUP", 64)
        grams.write_grams(folder, store, 2)
        return store, grams.Grams(folder, store)


@given(st.lists(st.sampled_from(_SYNTAX), min_size=1, max_size=8).map("".join), st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_filter_loses_no_match(grains, pattern, case_sensitive):
    store, filtered = grains
    try:
        compiled = grep.compile_pattern(pattern, case_sensitive)
    except BadPattern:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grep, "MOST_GRAINS", 2)
        patch.setattr(grams, "GROUP", 64)
        found = [ordinal for ordinal, _ in grep.matches(store, store.blocks(64), compiled, filtered)]
    assert found == _scan([store.body(n) for n in range(len(store))], pattern, case_sensitive)


def test_the_filter_passes_over_most_of_a_corpus(make_index, monkeypatch):
    draw = random.Random(0)
    texts = [" ".join("".join(draw.choices("etaoinshr", k=5)) for _ in range(300)) for _ in range(200)]
    texts[150] += " Quixote"
    index = make_index(texts)
    blocks, block = [], DocumentStore.block
    monkeypatch.setattr(DocumentStore, "block", lambda self, *cut: (blocks.append(cut), block(self, *cut))[1])
    assert _ids(index.grep("quixote", 5)) == ["150"]
    assert len(blocks) <= 2
    assert index.grep("(quixotes|Quixotic)", 5) == []
    assert len(blocks) <= 4


def test_blocks_cut_the_corpus_without_gap_or_overlap(store):
    for size in (1, 7, 64, 10**6):
        cuts = store.blocks(size)
        assert cuts[0] == 0
        assert cuts[-1] == len(store)
        assert cuts == sorted(set(cuts))
        joined = b"".join(store.block(first, stop)[0] for first, stop in pairwise(cuts))
        assert joined == b"".join(store.body(n) + b"\n" for n in range(len(store)))


def test_a_block_without_a_match_is_passed_over_in_one_search(store):
    class Counting:
        searches = 0

        def search(self, text):
            self.searches += 1

    exact = Counting()
    compiled = grep.Pattern(exact, grep.compile_pattern("nowhere at all", False).loose)
    assert list(grep.matches(store, store.blocks(64), compiled)) == []
    assert exact.searches == 0


def test_title_and_text_are_searched_in_corpus_order_and_case_is_ignored_by_default(make_index):
    index = make_index([("b", "Owl", "mail"), ("a", "mail", "an OWL"), ("c", "", "nothing")])
    assert _ids(index.grep("owl", 9)) == ["b", "a"]
    assert _ids(index.grep("owl", 1)) == ["b"]
    assert _ids(index.grep("OWL", 9, case_sensitive=True)) == ["a"]
    assert _ids(index.grep(r"Owl\nmail", 9)) == ["b"]
    assert _ids(index.grep(r"^owl", 9)) == ["b"]
    assert _ids(index.grep(r"owl$", 9)) == ["a"]


def test_a_search_that_takes_too_long_is_given_up(make_index, monkeypatch):
    index = make_index([(str(n), "", f"word {n} " * 40) for n in range(400)])
    assert index.grep("word 7", 1)
    monkeypatch.setattr(grep, "MOST_SECONDS", -1.0)
    for pattern in ("word 7", r"\w.{50}~"):  # by the filter, and over all text
        with pytest.raises(BadPattern, match="takes more than"):
            index.grep(pattern, 1)


def test_pages_follow_each_other(make_index):
    index = make_index([f"owl {n}" if n % 3 else "cat" for n in range(30)])
    everything = _ids(index.grep("owl", 30))
    assert len(everything) == 20
    assert [i for skip in (0, 7, 14) for i in _ids(index.grep("owl", 7, skip=skip))] == everything
    assert index.grep("owl", 7, skip=20) == index.grep("owl", 7, skip=10**12) == []
    assert _ids(index.grep("owl", 30, skip=-5)) == everything


def test_a_match_does_not_cross_from_one_document_into_the_next(make_index):
    index = make_index(["one alpha", "beta two"])
    assert index.grep(r"(?s)alpha.+beta", 5) == []
    assert index.grep(r"alpha\s+beta", 5) == []


def test_the_snippet_shows_the_match_after_multibyte_text(make_index):
    text = "é" * 50 + " filler" * 40 + " the NEEDLE here" + " filler" * 40
    hit = make_index([text], snippet_chars=60).grep("needle", 1)[0]
    assert "NEEDLE" in hit.snippet
    assert len(hit.snippet) <= 60
    assert 10 <= hit.snippet.index("NEEDLE") <= 20


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("", "empty"),
        ("a" * 161, "161 characters; at most 160"),
        ("(", "missing )"),
        ("[z-a]", "range"),
        ("*a", "Escape"),
        ("a{5000}", "repetition"),
        ("(?=a)", "look-ahead"),
        ("(?!a)b", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "back-references"),
        (r"(?P<x>a)(?P=x)", "back-references"),
        ("a++", "possessive"),
        (r"a\Z", r"\z"),
        (r"(?:(?:a|b).{1,200}){5}z", "too large"),
        (r"(?:\pL{0,100}z){10}", "large"),
        (r"\w.{190}~", "Write .* in place of a counted repetition"),
        (r"(\w+ ){0,20}e.{100}~", "too large"),
        (r"\w(.?\w?){95}~~", "too large"),
        (r"[e-z][ -}]{400}~", "too large"),
        (r"\x{2019}(\w+ ){0,20}e.{100}~", "too large"),
    ],
)
def test_a_bad_pattern_is_refused_with_a_reason_for_the_model(make_index, pattern, says):
    with pytest.raises(BadPattern) as error:
        make_index(["a"]).grep(pattern, 5)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "pattern",
    [
        r"revenue.{0,40}2019",
        r"revenue.*2019",
        r"\b(19|20)\d{2}\b",
        "(?i)THE",
        "rose( in|)",
        "[[:digit:]]",
        r"\p{L}+ \d",
        r"revenue\W+(?:\w+\W+){1,8}2019",
        "income|profit|quarter|dividend|earnings|billion|growth|shares|market|revenue",
        r"[a-z]+ [a-z]+ in \d\d\d\d|[A-Z][a-z]+ [A-Z][a-z]+ [A-Z][a-z]+",
        "\u2019?the revenue",
        r"\x{2019}?the revenue",
    ],
)
def test_ordinary_patterns_are_answered(make_index, pattern):
    assert _ids(make_index(["the revenue rose in 2019", "a"]).grep(pattern, 5)) == ["0"]


@pytest.mark.parametrize("letters", ["sky is", "é", "ж", "漢", "[ж-й]é"])
def test_any_text_of_the_greatest_length_is_a_pattern(make_index, letters):
    pattern = (letters * 160)[:156]
    assert make_index([letters]).grep(pattern, 5) == []
    assert make_index([letters]).grep(f"(?i){pattern}", 5) == []


@given(st.text(st.characters(codec=None, categories=None), max_size=170))
@settings(max_examples=200, deadline=None)
def test_a_pattern_is_searched_or_refused_with_a_reason(store, pattern):
    try:
        compiled = grep.compile_pattern(pattern, False)
    except BadPattern as error:
        refusal = str(error)
    else:
        refusal = f"found in {len(list(grep.matches(store, store.blocks(64), compiled)))} documents"
    assert refusal


_nested = st.recursive(
    st.sampled_from(["a", ".", r"\w", "[ab]", "(?:a|a)", "\0", "é"]),
    lambda inner: st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "{1,}"])).map(
        "({0[0]}){0[1]}".format
    ),
    max_leaves=12,
)


@given(st.lists(_nested, min_size=1, max_size=3).map("".join), st.sampled_from(["", "$", "b", "owl"]))
@settings(max_examples=150, deadline=None)
def test_nested_quantifiers_find_what_a_plain_scan_finds(grains, pattern, end):
    store, filtered = grains
    try:
        compiled = grep.compile_pattern(pattern + end, False)
    except BadPattern:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grams, "GROUP", 64)
        found = [ordinal for ordinal, _ in grep.matches(store, store.blocks(64), compiled, filtered)]
    assert found == _scan([store.body(n) for n in range(len(store))], pattern + end)


def test_a_lone_surrogate_in_a_pattern_matches_nothing(make_index):
    assert make_index(["plain", "?"]).grep("\ud800", 5) == []


def test_a_pattern_that_would_backtrack_is_quick_in_linear_time(make_index):
    assert make_index(["a" * 50_000]).grep("(a+)+$b", 1) == []


def test_grep_finds_what_an_index_on_disk_holds(tmp_path):
    path = tmp_path / "c.jsonl"
    texts = [f"document {n} " + "lorem ipsum " * 30 + ("rare-7" if n % 97 == 5 else "") for n in range(600)]
    path.write_text("".join(json.dumps({"id": str(n), "text": text}) + "\n" for n, text in enumerate(texts)))
    index = open_or_build(path)
    assert len(index._blocks) > 3
    assert _ids(index.grep(r"rare-\d", 100)) == [str(n) for n in range(600) if n % 97 == 5]
