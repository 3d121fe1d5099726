from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.data import joined_tasks
from jaxsearchrl.data.joined_tasks import Part, Split, join_parts, make_corpus, make_parts, near_copies, split_parts
from jaxsearchrl.data.question_sets import Question
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document

SPLITS = {"train": Split(0.5, 3, 2), "dev": Split(0.2, 1, 1), "eval": Split(0.3, 2, 1)}


def question(passage: str, text: str, title: str = "", source: str = "SQuAD") -> Question:
    return Question(source, title, passage, text, ("answer",))


def part(number: int, article: int, text: str = "") -> Part:
    return Part("SQuAD", text or f"question {number}?", ("answer",), (f"p{number}",), article)


def test_passages_that_differ_in_case_and_spaces_are_one_document_with_both_golds():
    questions = [
        question("The Amber Room was Lost.", "was the amber room lost?", "Amber Room"),
        question("the amber  room was lost.", "what amber thing was lost?", "Amber Room"),
        question("Basalt is a rock.", "is basalt a rock?"),
    ]
    corpus = make_corpus(questions, seed=1)
    assert sorted((d.title, d.text) for d in corpus) == [
        ("Amber Room", "The Amber Room was Lost."),
        ("Basalt is a rock.", "Basalt is a rock."),
    ]
    golds = [part.gold for part in make_parts(questions, corpus)]
    assert golds[0] == golds[1] != golds[2]


def test_a_passage_without_title_is_called_by_its_first_eight_words():
    (document,) = make_corpus([question("one two three four five six seven eight nine", "?")], seed=1)
    assert document.title == "one two three four five six seven eight"


def test_ids_are_a_digit_and_two_letters_unique_and_drawn_by_the_seed():
    questions = [question(f"passage {n}", "?") for n in range(3000)]
    corpus = make_corpus(questions, seed=1)
    ids = [document.id for document in corpus]
    assert len(set(ids)) == 3000
    assert ids == sorted(ids)
    assert all(len(id) == 3 and id[0].isdigit() and id[1:].isalpha() and id[1:] not in ("st", "nd") for id in ids)
    assert make_corpus(list(reversed(questions)), seed=1) == corpus
    assert {d.text: d.id for d in make_corpus(questions, seed=2)} != {d.text: d.id for d in corpus}
    # Neither the passage's place in its set nor that of another shows in the ids: neighbours are not neighbours.
    number = {document.id: int(document.text.split()[1]) for document in corpus}
    assert sum(abs(number[a] - number[b]) == 1 for a, b in pairwise(ids)) < 20


def test_more_passages_than_ids_are_refused():
    with pytest.raises(UserError, match="5000 passages but only 4370 ids"):
        make_corpus([question(f"passage {n}", "?") for n in range(5000)], seed=1)


def test_questions_that_make_sense_only_beside_their_passage_are_dropped(monkeypatch):
    monkeypatch.setattr(joined_tasks, "RARE_DOCUMENTS", 1)
    questions = [
        question("the team of amber won by ten yards", "how did the team of amber win?"),  # amber only
        question("the team of basalt won by cedar yards", "did the team of basalt and cedar win?"),  # basalt, cedar
        question("the dune was of ember", "did the team of dune and ember win?"),  # dune, ember
        question("the dune was of ember", "was the unheard unseen of ember?"),  # ember; the others occur nowhere
        question("the fjord was of garnet", "fjord garnet " + "x" * 120),  # too long
    ]
    parts = make_parts(questions, make_corpus(questions, seed=1))
    assert [part.text for part in parts] == [questions[1].text, questions[2].text]


def test_a_question_asked_of_two_passages_is_dropped_but_not_one_asked_twice_of_one():
    questions = [
        question("amber basalt one", "Where is amber basalt?"),
        question("amber basalt two", "where is amber basalt?"),
        question("cedar dune three", "where is cedar dune?"),
        question("cedar dune three", "Where is cedar dune?"),
    ]
    parts = make_parts(questions, make_corpus(questions, seed=1))
    assert [part.text for part in parts] == ["where is cedar dune?"]


def test_near_copies_share_half_of_the_shorter_ones_runs():
    words = [f"w{n}" for n in range(30)]
    short = words[:12]  # five runs of eight words
    more = [*words[:10], "x1", "x2", "x3", "x4"]  # shares three of them
    less = [*words[:9], "y1", "y2", "y3", "y4"]  # shares two
    corpus = [Document(id, "", " ".join(text)) for id, text in (("a", short), ("b", more), ("c", less))]
    assert near_copies(corpus) == {"a": {"b"}, "b": {"a"}, "c": set()}


def test_near_copies_answer_the_same_questions_and_are_one_article_with_all_of_the_same_title():
    text = " ".join(f"w{n}" for n in range(12))
    questions = [
        question(text, "where is w1 w2?", "Amber"),
        question(text + " more", "where is w3 w4?", "Basalt"),
        question("cedar dune", "where is cedar dune?", "basalt"),
        question("ember fjord", "where is ember fjord?", "Cedar"),
    ]
    one, two, three, four = make_parts(questions, make_corpus(questions, seed=1))
    assert one.gold == two.gold
    assert len(one.gold) == 2
    assert one.article == two.article == three.article != four.article


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["SQuAD", "DROP"])), max_size=40), st.integers(0, 9))
def test_splits_hold_every_part_once_and_share_no_article(drawn, seed):
    parts = [replace(part(number, article), source=source) for number, (article, source) in enumerate(drawn)]
    divided = split_parts(parts, SPLITS, seed)
    assert sorted(p.gold for split in divided.values() for p in split) == sorted(p.gold for p in parts)
    articles = [{p.article for p in split} for split in divided.values()]
    assert sum(map(len, articles)) == len(set().union(*articles))


def test_each_source_is_split_by_the_shares():
    parts = [replace(part(n, n), source=source) for n in range(200) for source in [("SQuAD", "DROP")[n % 2]]]
    divided = split_parts(parts, SPLITS, 1)
    counts = {name: Counter(p.source for p in split) for name, split in divided.items()}
    assert counts == {
        "train": {"SQuAD": 50, "DROP": 50},
        "dev": {"SQuAD": 20, "DROP": 20},
        "eval": {"SQuAD": 30, "DROP": 30},
    }


def test_requests_join_two_and_three_questions_of_different_articles():
    parts = [part(n, n // 3) for n in range(30)]
    tasks = join_parts(parts, Split(1.0, 10, 1), seed=1)
    assert [len(task) for task in tasks] == [2, 3] * 5
    assert all(len({p.article for p in task}) == len(task) for task in tasks)
    assert max(Counter(p for task in tasks for p in task).values()) == 1
    assert join_parts(list(reversed(parts)), Split(1.0, 10, 1), seed=1) == tasks
    assert join_parts(parts, Split(1.0, 10, 1), seed=2) != tasks


def test_questions_are_used_again_only_as_often_as_allowed_and_in_other_requests():
    parts = [part(n, n) for n in range(25)]
    with pytest.raises(UserError, match="25 questions make only 10 of 20 tasks"):
        join_parts(parts, Split(1.0, 20, 1), seed=1)
    tasks = join_parts(parts, Split(1.0, 19, 2), seed=1)
    assert max(Counter(p for task in tasks for p in task).values()) == 2
    assert len({frozenset(task) for task in tasks}) == 19
    together = Counter(pair for task in tasks for pair in combinations(sorted(p.text for p in task), 2))
    assert sum(number > 1 for number in together.values()) < 6  # the second use is mixed anew
    with pytest.raises(UserError, match="3 questions make only 3 of 4 tasks"):  # two pairs, and the one triple once
        join_parts(parts[:3], Split(1.0, 4, 20), seed=1)


def test_requests_keep_to_the_length_limit():
    long = [part(n, n, f"{n:03}".ljust(120, "x")) for n in range(40)]
    with pytest.raises(UserError, match="only 1 of 2"):  # two of them fit, three do not
        join_parts(long, Split(1.0, 2, 1), seed=1)
    tasks = join_parts([*long, *(part(n, n) for n in range(40, 60))], Split(1.0, 12, 1), seed=1)
    assert max(len("\n".join(p.text for p in task)) for task in tasks) <= joined_tasks.MAX_QUERY_CHARS
