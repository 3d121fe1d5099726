"""Which SEC questions are trained on and which are held out: the draw of sec-search-rl's `prepare-sec`.

Families that share a gold chunk, directly or through others, are one component; a component gives at most one
question, so that no two questions, and no two splits, share family, gold or text. One `random.Random(seed)` shuffles
the candidates of 7, 5 and 3 facts, first for the held-out questions, then for those to train on. It does so whatever
the sizes are: held-out questions are the same for every training size, and what a smaller training set takes of 7 facts
is what a larger one takes first; of 5 and 3 facts too, but for components of which the larger one took a rarer variant.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxsearchrl.data.harness1_rows import Query
from jaxsearchrl.data.joined_tasks import normalise
from jaxsearchrl.errors import UserError

SHARES = {3: 0.50, 5: 0.3125, 7: 0.1875}
"""Share of the questions by their number of facts."""
_ORDER = (7, 5, 3)  # the rarest first

Families = Mapping[str, Mapping[int, Query]]


@dataclass(frozen=True)
class Draw:
    """train: in an order of which every beginning has about the whole's mix of facts. dev: by id."""

    train: tuple[Query, ...]
    dev: tuple[Query, ...]


def by_family(queries: Sequence[Query]) -> Families:
    """The variants of each family by their number of facts; the last of several counts."""
    families: dict[str, dict[int, Query]] = {}
    for query in queries:
        families.setdefault(query.family, {})[len(query.task.facts)] = query
    return families


def components(families: Families) -> dict[str, str]:
    """For each family the first one of its component: those that share a gold chunk, directly or through others."""
    parent = {family: family for family in families}

    def root(family: str) -> str:
        while parent[family] != family:
            parent[family] = parent[parent[family]]
            family = parent[family]
        return family

    owner: dict[str, str] = {}
    for family, variants in families.items():
        for chunk_id in sorted(frozenset[str]().union(*(query.gold for query in variants.values()))):
            parent[root(family)] = root(owner.setdefault(chunk_id, family))
    names: dict[str, str] = {}
    return {family: names.setdefault(root(family), family) for family in families}


def quotas(size: int) -> dict[int, int]:
    """How many of `size` questions have 3, 5 and 7 facts; what rounding leaves goes to 3, then 5."""
    counts = {facts: int(size * share) for facts, share in SHARES.items()}
    for facts in list(counts)[: size - sum(counts.values())]:
        counts[facts] += 1
    return counts


def draw(families: Families, train_size: int, dev_size: int, seed: int, usable: Callable[[Query], bool]) -> Draw:
    """The held-out questions and those to train on, at most one a component and none twice in other words.

    usable: whether the corpus has all of a question's gold. Where too few questions have 7 or 5 facts, training
    questions of 5, then of 3 take their places. Raises UserError where there are too few.
    """
    component = components(families)
    rng = random.Random(seed)
    used: set[tuple[str, str]] = set()

    def take(candidates: Sequence[Query], count: int) -> list[Query]:
        taken: list[Query] = []
        for query in candidates:
            if len(taken) == count:
                break
            marks = {("component", component[query.family]), ("text", normalise(query.task.query))}
            if used.isdisjoint(marks) and usable(query):
                used.update(marks)
                taken.append(query)
        return taken

    def part(size: int) -> tuple[list[Query], dict[int, list[Query]]]:
        wanted, shuffled, taken = quotas(size), {}, {}
        for facts in _ORDER:
            shuffled[facts] = [variants[facts] for variants in families.values() if facts in variants]
            rng.shuffle(shuffled[facts])
            taken[facts] = take(shuffled[facts], wanted[facts])
        return [query for facts in _ORDER for query in taken[facts]], shuffled

    dev, _ = part(dev_size)
    if len(dev) < dev_size:
        raise UserError(
            f"--dev_size={dev_size}: only {len(dev)} questions in the mix of 3, 5 and 7 facts are independent of each "
            "other and have all of their gold in the corpus; lower it"
        )
    train, shuffled = part(train_size)
    for facts in (5, 3):
        train += take(shuffled[facts], train_size - len(train))
    if len(train) < train_size:
        raise UserError(
            f"--train_size={train_size}: only {len(train)} questions are independent of each other and of the "
            f"{dev_size} held-out ones, and have all of their gold in the corpus; lower it"
        )
    return Draw(tuple(interleave(train)), tuple(sorted(dev, key=lambda query: query.task.id)))


def interleave(queries: Sequence[Query]) -> list[Query]:
    """The questions in an order of which every beginning has about the whole's mix; of 8:5:3, every 16th exactly.

    The next one is of the kind of which the largest part is still to come, the fewest facts first.
    """
    kinds: dict[int, list[Query]] = {}
    for query in queries:
        kinds.setdefault(len(query.task.facts), []).append(query)
    places = [((number + 1) / len(kind), facts) for facts, kind in kinds.items() for number in range(len(kind))]
    left = {facts: iter(kind) for facts, kind in kinds.items()}
    return [next(left[facts]) for _, facts in sorted(places)]


class Traces:
    """What a set of questions would give away to a policy that is trained on them."""

    def __init__(self, queries: Iterable[Query]) -> None:
        queries = list(queries)
        self._families = {query.family for query in queries}
        self._gold = frozenset[str]().union(*(query.gold for query in queries))
        self._texts = {normalise(query.task.query) for query in queries}

    def shared(self, query: Query) -> list[str]:
        """What a question has in common with them: "family", "gold" (a chunk), "text" (but for case and space)."""
        common = {
            "family": query.family in self._families,
            "gold": not self._gold.isdisjoint(query.gold),
            "text": normalise(query.task.query) in self._texts,
        }
        return [name for name, holds in common.items() if holds]

    def overlaps(self, queries: Iterable[Query]) -> dict[str, int]:
        """How many questions have what in common with them."""
        counts = Counter(name for query in queries for name in self.shared(query))
        return {name: counts[name] for name in ("family", "gold", "text")}
