"""Whether a short answer is one of a question's gold answers: texts are normalised, then compared.

Golds are a sequence of aliases, of which one is enough. The prediction and all golds go through the same normalisation.

Both normalisations know nothing of numbers ("10" is "1.0", "3.14" is "314", "1.0" is not "1") nor of Unicode's
composed and decomposed letters. They are kept as published, so that scores compare; `numeric.py` compares numbers.
"""

import re
import string
import unicodedata
from collections.abc import Callable, Sequence

from jaxsearchrl.rewards.tags import without_tags

Normalise = Callable[[str], str]

_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def squad_normalised(text: str) -> str:
    """SQuAD's normalisation (Rajpurkar et al., 2016, arXiv:1606.05250), which Search-R1 uses, in its order.

    Lower case; the 32 characters of ASCII punctuation deleted, not spaced ("U.S." is "us", "well-known" "wellknown");
    the words a, an, the replaced by a space; whitespace collapsed. Curly quotes, dashes and full-width forms stay.
    """
    return _without_articles(text.lower().translate(_ASCII_PUNCTUATION))


def unicode_normalised(text: str) -> str:
    """As SQuAD's, but what is deleted is Unicode's category P (llm-agent-rl-lab's tool-call experiment).

    So it also deletes curly quotes, dashes and full-width or CJK punctuation; and it keeps `$ + < = > ^ ` | ~`, which
    are symbols (category S). Scores of the two do not compare on such texts.
    """
    return _without_articles("".join(c for c in text.lower() if not unicodedata.category(c).startswith("P")))


def exact_match(prediction: str, golds: Sequence[str], normalise: Normalise = squad_normalised) -> bool:
    """Whether the normalised prediction equals a normalised gold.

    Of "The The", "A" or "?!" normalisation leaves nothing; published, they are all equal, and equal to no answer at
    all. Here such a text is compared as it stands, in lower case. A blank text matches nothing. All else is as
    published.
    Raises TypeError for golds that are one bare text or hold something else, ValueError without golds.
    """
    aliases = _checked(golds)
    form = _form(prediction, normalise)
    return bool(form) and any(form == _form(alias, normalise) for alias in aliases)


def cover_match(prediction: str, golds: Sequence[str], normalise: Normalise = squad_normalised) -> bool:
    """Whether a normalised gold is part of the normalised prediction, or an exact match.

    Part means characters, as published ("sub-EM"): the gold "us" is part of "russia". A gold of which normalisation
    leaves nothing is part of no text, where published it is part of every text; it needs an exact match.
    Raises as `exact_match`.
    """
    aliases = _checked(golds)
    form = normalise(prediction)
    parts = filter(None, map(normalise, aliases))
    return any(part in form for part in parts) or exact_match(prediction, aliases, normalise)


def gold_in_answer(text: str, golds: Sequence[str], normalise: Normalise = squad_normalised) -> bool:
    """Whether a gold stands anywhere in the policy's own text, whatever its format: a lenient measure, not a reward.

    `cover_match` on the text without Search-R1's tags, since a gold "answer" must not be found in the markup.
    Raises as `exact_match`.
    """
    return cover_match(without_tags(text), golds, normalise)


def _without_articles(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text).split())


def _form(text: str, normalise: Normalise) -> str:
    """What is compared; never the same for a text that normalises to something and one that does not."""
    return normalise(text) or " ".join(text.lower().split())


def _checked(golds: Sequence[str]) -> Sequence[str]:
    if isinstance(golds, str):
        raise TypeError("golds are a sequence of aliases; this is one text, whose characters would be the aliases")
    if not all(isinstance(gold, str) for gold in golds):
        raise TypeError("every gold alias must be a text")
    if not golds:
        raise ValueError("a question without gold answers cannot be scored")
    return golds
