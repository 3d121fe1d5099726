"""The draw of questions: by hand, against a plain rewriting of its rule, and by what must always hold."""

import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.data.harness1_draw import Traces, by_family, components, draw, interleave, quotas
from jaxsearchrl.data.harness1_rows import Query, family_of
from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.curated.data import Fact, Task


def query(query_id: str, *gold: str, text: str = "", facts: int = 0) -> Query:
    """Each of `gold` supports a fact; `facts` of them at least, by chunks of its own."""
    chunks = [*gold, *(f"{query_id}#{number}" for number in range(facts - len(gold)))]
    found = tuple(Fact(f"fact {place}", (chunk,)) for place, chunk in enumerate(chunks))
    return Query(Task(query_id, text or f"what of {query_id}?", found), family_of(query_id))


def everything(_) -> bool:
    return True


def pool(count: int, facts=(3, 5, 7)) -> list[Query]:
    return [query(f"fam{number}_0", facts=facts[number % len(facts)]) for number in range(count)]


@pytest.mark.parametrize(
    ("size", "of"),
    [
        (256, (128, 80, 48)),
        (1024, (512, 320, 192)),
        (64, (32, 20, 12)),
        (1, (1, 0, 0)),
        (15, (8, 5, 2)),
        (17, (9, 5, 3)),
    ],
)
def test_quotas_are_8_to_5_to_3_and_the_rest_goes_to_the_fewest_facts(size, of):
    assert tuple(quotas(size)[facts] for facts in (3, 5, 7)) == of


def test_families_that_share_gold_are_one_component_also_through_others():
    rows = [query("a_0", "x"), query("b_0", "y"), query("c_0", "x", "z"), query("d_1", "y", "z"), query("e_0", "w")]
    found = components(by_family(rows))
    assert found == {"a": "a", "b": "a", "c": "a", "d": "a", "e": "e"}
    assert components(by_family(rows[:2])) == {"a": "a", "b": "b"}


def test_variants_of_one_family_are_never_both_drawn():
    rows = [query(f"fam{n}_{suffix}", facts=facts) for n in range(40) for suffix, facts in enumerate((3, 5, 7))]
    drawn = draw(by_family(rows), 16, 16, 42, everything)
    families = [one.family for one in (*drawn.train, *drawn.dev)]
    assert len(set(families)) == 32


def test_the_later_of_two_variants_with_as_many_facts_counts():
    rows = [query("a_0", facts=3, text="first"), query("b_0", facts=3), query("a_1", facts=3, text="second")]
    families = by_family(rows)
    assert [variants[3].task.query for variants in families.values()] == ["second", "what of b_0?"]


def test_a_text_asked_twice_is_drawn_once():
    rows = [
        query(f"fam{n}_0", facts=3, text="The same\u00a0 QUESTION " if n % 2 else "the same question") for n in range(9)
    ]
    rows += [query("own_0", facts=3)]
    assert len(draw(by_family(rows), 1, 1, 42, everything).train) == 1
    with pytest.raises(UserError, match="--train_size=2: only 1 questions"):
        draw(by_family(rows), 2, 1, 42, everything)


def test_too_few_questions_of_many_facts_are_made_up_for_by_fewer():
    """The published 1,024 are 638, 317 and 69: all that there are of 7 facts, then of 5."""
    rows = [query(f"{facts}fam{n}_0", facts=facts) for facts, count in ((3, 60), (5, 12), (7, 4)) for n in range(count)]
    drawn = draw(by_family(rows), 48, 1, 42, everything)  # wanted: 24, 15, 9
    count = {facts: sum(len(one.task.facts) == facts for one in drawn.train) for facts in (3, 5, 7)}
    assert count == {3: 32, 5: 12, 7: 4}
    with pytest.raises(UserError, match="--dev_size=48: only 40 questions in the mix"):  # 24, 12 of 15, 4 of 9
        draw(by_family(rows), 1, 48, 42, everything)


def test_what_7_facts_lack_is_made_up_for_by_5_before_3():
    rows = [query(f"{facts}fam{n}_0", facts=facts) for facts, count in ((3, 60), (5, 60), (7, 4)) for n in range(count)]
    train = draw(by_family(rows), 48, 1, 42, everything).train  # wanted: 24, 15, 9
    assert [sum(len(one.task.facts) == facts for one in train) for facts in (3, 5, 7)] == [24, 20, 4]


def test_only_usable_questions_are_drawn():
    rows = pool(120)
    drawn = draw(by_family(rows), 16, 16, 42, lambda one: int(one.family[3:]) >= 60)
    assert all(int(one.family[3:]) >= 60 for one in (*drawn.train, *drawn.dev))


def plain(rows: list[Query], train_size: int, dev_size: int, seed: int) -> tuple[set[str], set[str]]:
    """The published rule, written out for questions of which no two share gold."""
    rng, used, split = random.Random(seed), set(), {}
    families: dict[str, dict[int, Query]] = {}
    for one in rows:
        families.setdefault(one.family, {})[len(one.task.facts)] = one
    for name, size in (("dev", dev_size), ("train", train_size)):
        counts = {3: int(size * 0.5), 5: int(size * 0.3125), 7: int(size * 0.1875)}
        for facts in (3, 5, 7):
            counts[facts] += sum(counts.values()) < size
        chosen, lists, missing = set(), {}, 0
        for facts in (7, 5, 3):
            lists[facts] = [(family, own[facts]) for family, own in families.items() if facts in own]
            rng.shuffle(lists[facts])
            free = [one for one in lists[facts] if one[0] not in used][: counts[facts]]
            used |= {family for family, _ in free}
            chosen |= {one.task.id for _, one in free}
            missing += counts[facts] - len(free)
        for facts in (5, 3):
            free = [one for one in lists[facts] if one[0] not in used][:missing]
            used |= {family for family, _ in free}
            chosen |= {one.task.id for _, one in free}
            missing -= len(free)
        split[name] = chosen
    return split["train"], split["dev"]


@pytest.mark.parametrize("seed", [42, 7])
@pytest.mark.parametrize("sizes", [(32, 16), (64, 16), (100, 32)])
def test_the_draw_is_the_published_rule(sizes, seed):
    rng = random.Random(1)
    rows = [
        query(f"fam{n}_{suffix}", facts=facts)
        for n in range(200)
        for suffix, facts in enumerate((3, 5, 7)[: rng.choice((1, 1, 2, 3))])
    ]
    drawn = draw(by_family(rows), *sizes, seed, everything)
    ids = tuple({one.task.id for one in part} for part in (drawn.train, drawn.dev))
    assert ids == plain(rows, *sizes, seed)


def test_held_out_questions_are_the_same_whatever_the_training_size():
    rows = pool(300)
    sizes = (16, 64, 128)
    drawn = {size: draw(by_family(rows), size, 16, 42, everything) for size in sizes}
    assert drawn[16].dev == drawn[64].dev == drawn[128].dev
    assert [one.task.id for one in drawn[16].dev] == sorted(one.task.id for one in drawn[16].dev)
    # no family has two variants here: then a smaller set is a part of a larger one, and the first of it
    for small, large in ((16, 64), (64, 128)):
        assert drawn[large].train[:small] == drawn[small].train


@given(st.lists(st.sampled_from((3, 5, 7)), min_size=1, max_size=60))
def test_every_beginning_has_about_the_whole_mix(kinds):
    rows = [query(f"fam{n}_0", facts=facts) for n, facts in enumerate(kinds)]
    order = interleave(rows)
    assert sorted(one.task.id for one in order) == sorted(one.task.id for one in rows)
    for stop in range(1, len(order) + 1):
        for facts in (3, 5, 7):
            share = kinds.count(facts) / len(kinds)
            assert abs(sum(len(one.task.facts) == facts for one in order[:stop]) - share * stop) < 2
    for facts in (3, 5, 7):
        kind = [one for one in rows if len(one.task.facts) == facts]
        assert [one for one in order if len(one.task.facts) == facts] == kind


def test_the_first_sixteen_of_a_full_mix_are_eight_five_and_three():
    rows = [query(f"fam{n}_0", facts=facts) for n, facts in enumerate([3] * 512 + [5] * 320 + [7] * 192)]
    order = interleave(rows)
    for stop in range(16, 1025, 16):
        assert [sum(len(one.task.facts) == facts for one in order[:stop]) * 16 // stop for facts in (3, 5, 7)] == [
            8,
            5,
            3,
        ]


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (query("a_1", "z"), ["family"]),
        (query("b_0", "z", "x"), ["gold"]),
        (query("b_0", "z", text=" WHAT  of a_0\uff1f"), ["text"]),
        (query("a_0", "x"), ["family", "gold", "text"]),
        (query("b_0", "z"), []),
    ],
)
def test_traces_are_families_gold_and_texts(other, shared):
    traces = Traces([query("a_0", "x")])
    assert unicodedata.normalize("NFKC", "\uff1f") == "?"
    assert traces.shared(other) == shared
    assert traces.overlaps([other, query("c_0")]) == {name: int(name in shared) for name in ("family", "gold", "text")}


@given(st.integers(0, 10_000))
def test_no_draw_shares_anything_between_its_splits(seed):
    """Families that share gold at random, texts that repeat, and variants."""
    rng = random.Random(seed)
    rows = [
        query(
            f"fam{n}_{suffix}",
            *(f"c{rng.randrange(150)}" for _ in range(rng.randrange(2))),
            facts=facts,
            text=rng.choice(("", "", "", f"text {rng.randrange(20)}")),
        )
        for n in range(80)
        for suffix, facts in enumerate((3, 5, 7)[: rng.choice((1, 2, 3))])
    ]
    try:
        drawn = draw(by_family(rows), 8, 6, seed, everything)
    except UserError:
        return
    for number, one in enumerate(both := (*drawn.train, *drawn.dev)):
        assert not Traces(both[:number]).shared(one)
