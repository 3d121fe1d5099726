"""The curated-set task on SEC filings: a subset of Harness-1's data, drawn as sec-search-rl's `prepare-sec` draws it.

The query table and 43 shards of chunks (2 GB) become a corpus of some hundred thousand chunks, questions to train on,
held-out ones, and demonstrations for a warm start. Two passes go over the shards: one finds which gold chunks there
are, one cuts the corpus.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.data.assets import sha256_of
from jaxsearchrl.data.harness1_beir import write_beir, write_lines
from jaxsearchrl.data.harness1_card import card
from jaxsearchrl.data.harness1_corpus import count_chunks, cut_corpus, find_ids
from jaxsearchrl.data.harness1_draw import Draw, Traces, by_family, draw, quotas
from jaxsearchrl.data.harness1_input import CHUNKS, SHARDS, Harness1Input, find_harness1
from jaxsearchrl.data.harness1_rows import Query, family_of, read_queries
from jaxsearchrl.data.harness1_sft import read_demonstrations
from jaxsearchrl.data.prepared_folder import prepare_folder
from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.curated import demonstrations
from jaxsearchrl.tasks.curated.data import to_row
from jaxsearchrl.telemetry.progress import Progress

VERSION = 1  # raised whenever this code changes what is written
_NAMED = 5  # how many ids an error or the card names
_MOST_WITHOUT_GOLD = 0.5  # with a larger share of questions without their gold, it is another corpus, or a part of it


@dataclass(frozen=True)
class Harness1Options:
    """What is drawn. The defaults are the published subset's of 1,024 questions.

    random_distractors: about how many chunks are drawn beside gold and its neighbours; as many as there are takes all.
    neighbour_radius: how far from a gold chunk others of its filing are kept.
    leaks: a question of a test split that training would give away is an error, or left out.
    """

    train_size: int = 1024
    dev_size: int = 64
    random_distractors: int = 60_000
    neighbour_radius: int = 4
    seed: int = 42
    leaks: str = "refuse"


def prepare_harness1(given: str, output: str | Path, options: Harness1Options) -> dict[str, Any]:
    """Fills the folder `output` from the input that `given` names (see `find_harness1`), and returns its manifest.

    Raises UserError naming the file, row and column of what cannot be used, for questions of a test split that training
    would give away, and for a folder of another input or other options.
    """
    found = find_harness1(given)
    progress = Progress()
    with progress.phase("checksums of the input"):
        recipe = {"data_set": "harness1", "version": VERSION, **asdict(options), "input": found.fingerprint()}
    return prepare_folder(Path(output), recipe, lambda folder: _write(found, given, folder, options, progress, recipe))


def _write(
    found: Harness1Input,
    given: str,
    folder: Path,
    options: Harness1Options,
    progress: Progress,
    recipe: dict[str, Any],
) -> dict[str, Any]:
    chunks = count_chunks(found.shards)
    rows, left_out = read_queries(found.queries, stage="rl")
    families = by_family(rows)
    queries = [query for variants in families.values() for query in variants.values()]
    left_out["replaced by a later variant of its family with as many facts"] = len(rows) - len(queries)
    test, test_left_out = read_queries(found.test)
    wanted = _gold([*queries, *test])
    with progress.phase("looking for gold chunks", total=chunks) as advance:
        there = find_ids(found.shards, wanted, advance)
    lacking = [query for query in queries if not query.gold <= there]
    if len(lacking) > _MOST_WITHOUT_GOLD * len(queries):
        raise UserError(
            f"{given}: the {len(found.shards)} shards lack gold chunks of {len(lacking)} of {len(queries)} questions, "
            f"such as {_named(lacking)}: is this the whole corpus ({SHARDS} shards, {CHUNKS:,} chunks)?"
        )
    drawn = draw(families, options.train_size, options.dev_size, options.seed, lambda query: query.gold <= there)
    test_left_out["gold that the corpus lacks"] = sum(not query.gold <= there for query in test)
    test = _clean(drawn, [query for query in test if query.gold <= there], options.leaks, test_left_out)
    own = {"train": drawn.train, "dev": drawn.dev}
    splits = {**own, "test": tuple(test)} if found.test else own
    share = min(1.0, options.random_distractors / chunks)
    with progress.phase("cutting the corpus", total=chunks) as advance:
        kinds, ids = cut_corpus(
            found.shards,
            folder / "corpus.jsonl",
            _gold([query for part in splits.values() for query in part]),
            radius=options.neighbour_radius,
            share=share,
            seed=options.seed,
            advance=advance,
        )
    for split, part in splits.items():
        write_lines(folder / f"{split}.jsonl", (to_row(query.task) for query in part))
    with progress.phase("demonstrations"):
        taught, changes = _write_demonstrations(found, folder, queries, [*drawn.dev, *test], ids)
    names = ["corpus.jsonl", *(f"{split}.jsonl" for split in splits), *(["demonstrations.jsonl"] if taught else [])]
    names += write_beir(folder, own)
    trained_on = Traces([*drawn.train, *taught])
    counts = {
        "input": {"given": given, "revision": found.revision, "shards": len(found.shards), "chunks": chunks},
        "corpus": {**kinds, "share_drawn": share},
        "questions": {split: _by_facts(part) for split, part in splits.items()},
        "quotas": {split: _keys(quotas(getattr(options, f"{split}_size"))) for split in own},
        "overlaps_with_train": {split: trained_on.overlaps(part) for split, part in splits.items() if split != "train"},
        "left_out": {
            "queries": dict(+left_out),
            "queries whose gold the corpus lacks": len(lacking),
            "gold chunks that the corpus lacks": len(wanted - there),
            "test": dict(+test_left_out),
        },
        "demonstrations": {"rows": len(taught), **changes},
    }
    (folder / "README.md").write_text(card(counts, recipe), "utf-8")
    return {**counts, "files": {name: {"sha256": sha256_of(folder / name)} for name in (*names, "README.md")}}


def _clean(drawn: Draw, test: Sequence[Query], leaks: str, left_out: Counter[str]) -> list[Query]:
    """The test questions that nothing trained on gives away; of several with one id the last."""
    traces = Traces(drawn.train)
    judged = [(query, " and ".join(traces.shared(query))) for query in test]
    leaking = [query for query, shared in judged if shared]
    if leaking and leaks == "refuse":
        counts = ", ".join(f"{name} {count}" for name, count in traces.overlaps(leaking).items())
        raise UserError(
            f"{len(leaking)} of {len(test)} test questions share something with a training question ({counts}), such "
            f"as {_named(leaking)}: a score on them would count what was trained on. --leaks=leave_out leaves them out "
            "of test.jsonl; or take the test split out of the input"
        )
    left_out.update(f"shares {shared} with a training question" for _, shared in judged if shared)
    clean = {query.task.id: query for query, shared in judged if not shared}
    left_out["replaced by a later row of the same id"] = len(test) - len(leaking) - len(clean)
    return list(clean.values())


def _write_demonstrations(
    found: Harness1Input, folder: Path, queries: Sequence[Query], held_out: Sequence[Query], corpus: Collection[str]
) -> tuple[list[Query], dict[str, dict[str, int]]]:
    """The questions of those that were written, and by reason what of the rows, and what in them, was left out."""
    rows, actions = Counter[str](), Counter[str]()
    taught: dict[str, Query] = {}

    def lines():
        for demonstration, lost in read_demonstrations(found.queries, queries, held_out, corpus):
            if demonstration is None:
                rows.update(lost)
            elif demonstration.id in taught:
                rows["another row of the same id"] += 1
            else:
                taught[demonstration.id] = Query(demonstration.task, family_of(demonstration.id))
                actions.update(lost)
                yield demonstrations.to_row(demonstration)

    write_lines(folder / "demonstrations.jsonl", lines())
    return list(taught.values()), {"rows left out": dict(+rows), "changes in the others": dict(+actions)}


def _gold(queries: Sequence[Query]) -> frozenset[str]:
    return frozenset[str]().union(*(query.gold for query in queries))


def _named(queries: Sequence[Query]) -> str:
    more = f" and {len(queries) - _NAMED} more" if len(queries) > _NAMED else ""
    return ", ".join(query.task.id for query in queries[:_NAMED]) + more


def _by_facts(queries: Sequence[Query]) -> dict[str, int]:
    counts = Counter(len(query.task.facts) for query in queries)
    return {"questions": len(queries), **_keys(dict(sorted(counts.items())))}


def _keys(counts: dict[int, int]) -> dict[str, int]:
    return {f"of {facts} facts": count for facts, count in counts.items()}
