import pytest

from jaxsearchrl.search.literals import Required, required


def _all(*literals, choices=()):
    return Required(literals, choices)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("Apple Inc", _all("apple inc")),
        (r"^10-K\b.*2019$", _all("10-k", "2019")),
        ("ab*cd", _all("a", "cd")),
        ("ab+cd", _all("ab", "cd")),
        ("ab{0,3}c{2,}d", _all("a", "c", "d")),
        ("ab{x}", _all("ab{x}")),
        ("a(?:bc)?d", _all("a", "d")),
        ("a(bc)d", _all("a", "bc", "d")),
        ("a(bc)+d", _all("a", "bc", "d")),
        ("x[^]a]y", _all("x", "y")),
        (r"\$5\.00", _all("$5.00")),
        ("caféx", _all("caf", "x")),
        ("(?i)Abc(?s:d)", _all("abc", "d")),
        ("abc|de", _all(choices=((_all("abc"), _all("de")),))),
        ("x(a|b.c)", _all("x", choices=((_all("a"), _all("b", "c")),))),
        ("abc|.*", Required()),
        ("abc|", Required()),
        (r"abc\Qd\E", Required()),
        (r"abc\x41", Required()),
        (r"(?P<year>19)\p{Nd}\pLz", _all("19", "z")),
        ("", Required()),
    ],
)
def test_what_a_text_must_hold(pattern, wanted):
    assert required(pattern) == wanted
