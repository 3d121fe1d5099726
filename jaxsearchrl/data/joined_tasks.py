"""Makes search tasks by joining questions about different articles into one request.

One search for the whole request finds only some of the passages, so that searching part by part pays. Everything is
ordered by hashes of text and seed: the same questions give the same tasks with any version of Python.
"""

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TypeVar

from jaxsearchrl.data.question_sets import Question
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document

RARE_DOCUMENTS = 20  # a word is rare when at most so many passages hold it
RARE_WORDS = 2  # rare words that a question needs to be understood without its passage
MAX_QUESTION_CHARS = 120
MAX_QUERY_CHARS = 320  # of a whole request: at most about 90 tokens
PARTS = (2, 3)  # questions of a request, in turn
TITLE_WORDS = 8
RUN_WORDS = 8  # passages are near copies when they share half of the shorter one's runs of so many words

ID_LETTERS = "abcdefghiklmnoprstuwy"  # pairs of these are mostly one token, pairs with the others are not
ORDINALS = ("st", "nd", "rd", "th")  # an id like "1st" would read as a word

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """One question of a request: `gold` are the ids of the passages that answer it, any one will do.

    Passages of one article, and near copies, have the same `article`.
    """

    source: str
    text: str
    answers: tuple[str, ...]
    gold: tuple[str, ...]
    article: int


@dataclass(frozen=True)
class Split:
    """`share` of the questions goes to this split and makes `tasks` requests; each is used at most `uses` times."""

    share: float
    tasks: int
    uses: int


def normalise(text: str) -> str:
    """The form in which texts are compared: NFKC, case-folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def title_of(question: Question) -> str:
    """The title of the question's passage: its article's, else the passage's first TITLE_WORDS words."""
    return question.title or " ".join(question.passage.split()[:TITLE_WORDS])


def make_corpus(questions: Sequence[Question], seed: int) -> list[Document]:
    """The unique passages (by normalised text), in the order of their ids.

    An id is a digit and two letters, drawn by hash: two tokens for most tokenizers that keep digits apart, the same two
    with or without a space before it, and it tells nothing of the source.
    """
    first = {}
    for question in questions:
        first.setdefault(normalise(question.passage), question)
    ids = [f"{digit}{a}{b}" for digit, a, b in product("0123456789", ID_LETTERS, ID_LETTERS) if a + b not in ORDINALS]
    if len(first) > len(ids):
        raise UserError(f"{len(first)} passages but only {len(ids)} ids: lengthen the ids")
    drawn = shuffled(ids, f"{seed} ids", str)
    passages = shuffled(first, f"{seed} passages", str)
    return sorted(
        (
            Document(id, title_of(first[passage]), first[passage].passage)
            for id, passage in zip(drawn, passages, strict=False)
        ),
        key=lambda document: document.id,
    )


def make_parts(questions: Sequence[Question], corpus: Sequence[Document]) -> list[Part]:
    """The questions that can be understood without their passage, with gold ids and articles.

    A question is kept when it has at most MAX_QUESTION_CHARS, is asked of one passage only (or of near copies), and has
    at least RARE_WORDS different words that occur in the corpus, each in at most RARE_DOCUMENTS passages. What a search
    finds plays no part in the choice.
    """
    ids = {normalise(document.text): document.id for document in corpus}
    copies = near_copies(corpus)
    articles = _articles(questions, ids, copies)
    holders = Counter(word for document in corpus for word in _words(f"{document.title} {document.text}"))
    asked_of = defaultdict(set)
    for question in questions:
        asked_of[normalise(question.text)].add(ids[normalise(question.passage)])
    parts = {}
    for question in questions:
        key, id = normalise(question.text), ids[normalise(question.passage)]
        gold = {id, *copies[id]}
        rare = sum(1 <= holders[word] <= RARE_DOCUMENTS for word in _words(question.text))
        if len(question.text) <= MAX_QUESTION_CHARS and asked_of[key] <= gold and rare >= RARE_WORDS:
            part = Part(question.source, question.text, question.answers, tuple(sorted(gold)), articles[id])
            parts.setdefault(key, part)
    return list(parts.values())


def near_copies(corpus: Sequence[Document]) -> dict[str, set[str]]:
    """For each id the ids of passages that share at least half of the shorter one's runs of RUN_WORDS words."""
    runs = {}
    for document in corpus:
        words = re.findall(r"\w+", normalise(document.text))
        starts = range(max(1, len(words) - RUN_WORDS + 1))
        runs[document.id] = {" ".join(words[i : i + RUN_WORDS]) for i in starts}
    holders = defaultdict(list)
    for id, texts in runs.items():
        for text in texts:
            holders[text].append(id)
    shared = Counter(pair for ids in holders.values() for pair in combinations(sorted(ids), 2))
    copies = {document.id: set() for document in corpus}
    for (a, b), count in shared.items():
        if 2 * count >= min(len(runs[a]), len(runs[b])):
            copies[a].add(b)
            copies[b].add(a)
    return copies


def split_parts(parts: Sequence[Part], splits: Mapping[str, Split], seed: int) -> dict[str, list[Part]]:
    """Divides whole articles among the splits, each source set by the splits' shares of its questions."""
    by_source = defaultdict(lambda: defaultdict(list))
    source_of = {}
    for part in parts:
        by_source[source_of.setdefault(part.article, part.source)][part.article].append(part)
    divided = {name: [] for name in splits}
    for articles in by_source.values():
        taken = Counter()
        for article in shuffled(articles.values(), f"{seed} articles", lambda members: members[0].text):
            name = min(splits, key=lambda name: (taken[name] + len(article)) / splits[name].share)
            taken[name] += len(article)
            divided[name].extend(article)
    return divided


def join_parts(parts: Sequence[Part], split: Split, seed: int) -> list[tuple[Part, ...]]:
    """Requests of PARTS parts in turn, no two parts of one article, at most MAX_QUERY_CHARS together.

    Raises UserError when the parts do not suffice for `split.tasks`.
    """
    tasks, seen = [], set()
    for use in range(split.uses):
        left = shuffled(parts, f"{seed} parts {use}", lambda part: part.text)
        while len(tasks) < split.tasks and (task := _take(left, PARTS[len(tasks) % len(PARTS)])):
            taken = {part.text for part in task}
            left = [part for part in left if part.text not in taken]
            if frozenset(task) not in seen:
                seen.add(frozenset(task))
                tasks.append(task)
    if len(tasks) < split.tasks:
        raise UserError(f"{len(parts)} questions make only {len(tasks)} of {split.tasks} tasks: ask for fewer tasks")
    return tasks


def _take(left: Sequence[Part], size: int) -> tuple[Part, ...]:
    """The first `size` parts that go together; () when there are not as many."""
    task = []
    for part in left:
        if part.article in {other.article for other in task}:
            continue
        if sum(len(other.text) + 1 for other in task) + len(part.text) <= MAX_QUERY_CHARS:
            task.append(part)
        if len(task) == size:
            return tuple(task)
    return ()


def _articles(questions: Sequence[Question], ids: Mapping[str, str], copies: Mapping[str, set[str]]) -> dict[str, int]:
    """Joins passages with a common title, and near copies, into articles (connected components)."""
    neighbours = {id: set(others) for id, others in copies.items()}
    for question in questions:
        id, title = ids[normalise(question.passage)], f"title {normalise(title_of(question))}"
        neighbours[id].add(title)
        neighbours.setdefault(title, set()).add(id)
    articles = {}
    for number, start in enumerate(neighbours):
        reached = [] if start in articles else [start]
        while reached:
            node = reached.pop()
            if node not in articles:
                articles[node] = number
                reached.extend(neighbours[node])
    return articles


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", normalise(text)))


def shuffled(items: Iterable[T], salt: str, text_of: Callable[[T], str]) -> list[T]:
    """The items in an order that depends on their texts and the salt only."""
    return sorted(items, key=lambda item: hashlib.blake2b(f"{salt}\0{text_of(item)}".encode(), digest_size=16).digest())
