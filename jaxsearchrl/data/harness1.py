"""The curated-set task on SEC filings: a subset of Harness-1's data, drawn as sec-search-rl's `prepare-sec` draws it.

The query table and 43 shards of chunks (2 GB) become a corpus of some hundred thousand chunks, questions to train on,
held-out ones, and demonstrations for a warm start. Two passes go over the shards: one finds which gold chunks there
are, one cuts the corpus.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

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
    leaks: Literal["refuse", "leave_out"] = "refuse"


def prepare_harness1(given: str, output: str | Path, options: Harness1Options) -> dict[str, Any]:
    """Fills the folder `output` from the input that `given` names (see `find_harness1`), and returns its manifest.

    Raises UserError naming the file, row and column of what cannot be used, for questions of a test split that training
    would give away, and for a folder of another input or other options.
    """
    found = find_harness1(given)
    progress = Progress()
    with progress.phase("checksums of the input"):
        recipe = {"data_set": "harness1", "version": VERSION, **asdict(options), "input": found.fingerprint()}

    def write(folder: Path) -> dict[str, Any]:
        chunks = count_chunks(found.shards)
        chosen = _choose(found, chunks, options, progress)
        source = {"given": given, "revision": found.revision, "shards": len(found.shards), "chunks": chunks}
        counts = {"input": source, **_write(found, chosen, chunks, folder, options, progress)}
        (folder / "README.md").write_text(card(counts, recipe), "utf-8")
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        return {**counts, "files": {name: {"sha256": sha256_of(folder / name)} for name in files}}

    return prepare_folder(Path(output), recipe, write)


@dataclass(frozen=True)
class _Chosen:
    """splits: the questions of each file. queries: all of the table. left_out: what is not among them, and why."""

    splits: Mapping[str, Sequence[Query]]
    queries: Sequence[Query]
    left_out: Mapping[str, Any]

    @property
    def held_out(self) -> list[Query]:
        """What nothing that is taught may share anything with."""
        return [query for split, part in self.splits.items() if split != "train" for query in part]


def _choose(found: Harness1Input, chunks: int, options: Harness1Options, progress: Progress) -> _Chosen:
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
            f"the {len(found.shards)} shards of {found.shards[0].parent} lack gold chunks of {len(lacking)} of "
            f"{len(queries)} questions, such as {_named(lacking)}: is this the whole corpus ({SHARDS} shards, "
            f"{CHUNKS:,} chunks)?"
        )
    drawn = draw(families, options.train_size, options.dev_size, options.seed, lambda query: query.gold <= there)
    test_left_out["gold that the corpus lacks"] = sum(not query.gold <= there for query in test)
    test = _clean(drawn, [query for query in test if query.gold <= there], options.leaks, test_left_out)
    return _Chosen(
        splits={"train": drawn.train, "dev": drawn.dev, **({"test": test} if found.test else {})},
        queries=queries,
        left_out={
            "queries": dict(+left_out),
            "queries whose gold the corpus lacks": [query.task.id for query in lacking],
            "gold chunks that the corpus lacks": sorted(wanted - there),
            "test": dict(+test_left_out),
        },
    )


def _write(
    found: Harness1Input, chosen: _Chosen, chunks: int, folder: Path, options: Harness1Options, progress: Progress
) -> dict[str, Any]:
    """Fills the folder and returns what the card says of it."""
    share = min(1.0, options.random_distractors / chunks)
    with progress.phase("cutting the corpus", total=chunks) as advance:
        kinds, ids = cut_corpus(
            found.shards,
            folder / "corpus.jsonl",
            _gold([query for part in chosen.splits.values() for query in part]),
            radius=options.neighbour_radius,
            share=share,
            seed=options.seed,
            advance=advance,
        )
    for split, part in chosen.splits.items():
        write_lines(folder / f"{split}.jsonl", (to_row(query.task) for query in part))
    own = {split: chosen.splits[split] for split in ("train", "dev")}
    write_beir(folder, own)
    with progress.phase("demonstrations"):
        taught, changes = _write_demonstrations(found, folder, chosen, ids)
    traces = Traces([*own["train"], *taught])
    return {
        "corpus": {**kinds, "share_drawn": share},
        "questions": {split: _by_facts(part) for split, part in chosen.splits.items()},
        "quotas": {split: _keys(quotas(len(part))) for split, part in own.items()},
        "overlaps_with_train": {
            split: traces.overlaps(part) for split, part in chosen.splits.items() if split != "train"
        },
        "left_out": chosen.left_out,
        "demonstrations": {"rows": len(taught), **changes},
    }


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
    found: Harness1Input, folder: Path, chosen: _Chosen, corpus: Collection[str]
) -> tuple[list[Query], dict[str, dict[str, int]]]:
    """The questions of those that were written, and by reason what of the rows, and what in them, was left out."""
    rows, actions = Counter[str](), Counter[str]()
    taught: dict[str, Query] = {}

    def lines() -> Iterator[dict[str, Any]]:
        for demonstration, lost in read_demonstrations(found.queries, chosen.queries, chosen.held_out, corpus):
            if demonstration is None:
                rows.update(lost)
            elif demonstration.id in taught:
                rows["another row of the same id"] += 1
            else:
                taught[demonstration.id] = Query(demonstration.task, family_of(demonstration.id))
                actions.update(lost)
                yield demonstrations.to_row(demonstration)

    write_lines(folder / "demonstrations.jsonl", lines())
    if not taught:
        (folder / "demonstrations.jsonl").unlink()
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
