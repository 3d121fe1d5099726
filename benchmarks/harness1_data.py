"""A data set with the layout, schema and odds of Harness-1's, of any size: for tests, and by hand at its true size.

    python -m benchmarks.harness1_data FOLDER        2.1 million chunks in 43 shards, 3,453 questions (0.35 GB)

Families, their suffixes, ids that train and test share, and gold that no shard has are as in the published table; texts
are random words. The same options give the same rows.
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet
from tqdm import tqdm

from jaxsearchrl.data.harness1_rows import as_list

WORDS = ("revenue", "risk", "lease", "goodwill", "segment", "dividend", "audit", "covenant", "pension", "hedge", "tax")
_FACTS = {0: 3, 1: 5, 2: 7}  # facts by the suffix of a question's id
_TEXT = 600  # characters of a chunk


@dataclass(frozen=True)
class Sizes:
    """families: how many have one, two and three variants. absent: share of questions with gold that no shard has.

    shared: ids that are in the test split as well, with other questions.
    """

    filings: int = 37_113
    chunks: int = 2_115_106
    shards: int = 43
    families: tuple[int, int, int] = (1_250, 776, 217)
    sft: int = 899
    test: int = 1_216
    shared: int = 585
    absent: float = 0.01


def write(folder: Path, sizes: Sizes, seed: int = 7, *, test: bool = False) -> list[dict[str, Any]]:
    """Writes the query table and the shards (and, if asked, a test split); returns the rows of stage "rl"."""
    lengths = _lengths(sizes)
    queries = list(_queries(sizes, lengths, random.Random(seed)))
    rows = queries + list(_supervised(sizes, queries, random.Random(seed + 1)))
    write_table(folder / "data/train-00000-of-00001.parquet", rows)
    if test:
        own = _test(sizes, queries, lengths, random.Random(seed + 2))
        write_table(folder / "data/test-00000-of-00001.parquet", list(own))
    _write_shards(folder / "corpora/sec/train", sizes, lengths, random.Random(seed + 3))
    return queries


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """All columns are text, as published."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ("stage", "dataset_name", "query_id", "query", "answer", "document_ids_json", "payload_json")
    schema = pyarrow.schema([(column, pyarrow.string()) for column in columns])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path, row_group_size=1000)


def accession(filing: int) -> str:
    """A filing's id."""
    return f"{filing:010d}-25-{filing % 1_000_000:06d}"


def _lengths(sizes: Sizes) -> list[int]:
    """Chunks of each filing: all as many, but for what division leaves."""
    mean, rest = divmod(sizes.chunks, sizes.filings)
    return [mean + (filing < rest) for filing in range(sizes.filings)]


def _queries(sizes: Sizes, lengths: list[int], rng: random.Random) -> Iterator[dict[str, Any]]:
    families = [variants for variants, count in enumerate(sizes.families, 1) for _ in range(count)]
    rng.shuffle(families)
    for number, variants in enumerate(families):
        # few filings are asked of often, so that families share gold and become components
        filing = min(rng.randrange(sizes.filings), rng.randrange(sizes.filings))
        places = list(range(lengths[filing]))
        facts = []
        for _ in range(_FACTS[variants - 1]):
            chosen = rng.sample(places, min(len(places), rng.choice((1, 1, 1, 2, 3))))
            facts.append([f"{accession(filing)}_{place}" for place in chosen])
        for suffix in range(variants):
            own = [list(chunk_ids) for chunk_ids in facts[: _FACTS[suffix]]]
            if rng.random() < sizes.absent:
                own[0].append(f"{accession(filing)}_{lengths[filing] + 5}")
            yield _row(
                "rl", f"fam{number:04d}_{suffix}", f"What of {number}, part {suffix}?", own, literal=rng.random() < 0.5
            )


def _row(stage: str, query_id: str, query: str, gold: list[list[str]], *, literal: bool) -> dict[str, Any]:
    facts = [
        {"fact": f"fact {place} of {query_id}", "chunk_ids": chunk_ids, "is_final_answer": place == len(gold) - 1}
        for place, chunk_ids in enumerate(gold)
    ]
    return {
        "stage": stage,
        "dataset_name": "sec",
        "query_id": query_id,
        "query": query,
        "document_ids_json": repr(facts) if literal else json.dumps(facts),
    }


def _supervised(sizes: Sizes, queries: list[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Of every four rows three are SEC's, one another set's."""
    for number, source in enumerate(rng.sample(queries, min(sizes.sft, len(queries)))):
        facts = as_list(source["document_ids_json"], source["query_id"])
        ids = [fact["chunk_ids"][0] for fact in facts]
        history = [
            ("fan_out_search", {"queries": ["revenue", "lease risk"]}),
            ("search_corpus", {"query": source["query"]}),
            ("verify", {"doc_ids": ids[:2], "claim": "it holds"}),
            ("curate", {"add_ids": ids, "remove_ids": [], "importance": "high"}),
            ("end_search", {"reasoning": "done"}),
        ]
        payload = {
            "format_version": "ultra_v3",
            "query_id": source["query_id"],
            "query_text": source["query"],
            "dataset_name": "sec",
            "curated_ids": ids,
            "turn_history": [
                {
                    "turn_idx": turn,
                    "tool_name": tool,
                    "params": params,
                    "reasoning": f"step {turn}",
                    "observation": "x" * 200,
                }
                for turn, (tool, params) in enumerate(history)
            ],
            "doc_store": {i: {"snippet": "y" * 500} for i in ids},
        }
        data_set = "sec" if number % 4 else "web"
        yield {
            **source,
            "stage": "sft",
            "dataset_name": data_set,
            "document_ids_json": None,
            "payload_json": json.dumps(payload),
        }


def _test(
    sizes: Sizes, queries: list[dict[str, Any]], lengths: list[int], rng: random.Random
) -> Iterator[dict[str, Any]]:
    """Other questions; some have ids that training questions have."""
    ids = [query["query_id"] for query in rng.sample(queries, min(sizes.shared, len(queries)))]
    ids += [f"test{number:04d}_0" for number in range(sizes.test - len(ids))]
    for number, query_id in enumerate(ids):
        filing = rng.randrange(sizes.filings)
        gold = [[f"{accession(filing)}_{rng.randrange(lengths[filing])}"] for _ in range(3)]
        yield _row("test", query_id, f"Test question {number}?", gold, literal=False)


def _write_shards(folder: Path, sizes: Sizes, lengths: list[int], rng: random.Random) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    noise = " ".join(rng.choices(WORDS, k=200_000))
    ids = ((filing, place) for filing, length in enumerate(lengths) for place in range(length))
    schema = pyarrow.schema([(column, pyarrow.string()) for column in ("chunk_id", "document_text", "metadata_json")])
    for shard in tqdm(range(sizes.shards), desc="shards", delay=1):
        first, last = (sizes.chunks * number // sizes.shards for number in (shard, shard + 1))
        with parquet.ParquetWriter(folder / f"train-{shard:05d}.parquet", schema) as writer:
            for start in range(first, last, 10_000):
                rows = [_chunk(*next(ids), noise, rng) for _ in range(min(10_000, last - start))]
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def _chunk(filing: int, place: int, noise: str, rng: random.Random) -> dict[str, str]:
    start = rng.randrange(len(noise) - _TEXT)
    head = f"Company: Company {filing}\nFiling Date: 2025-03-01\nForm: 10-K\nChunk {place}\n---\n"
    metadata = {
        "source": accession(filing),
        "ticker": f"T{filing}",
        "chunk_i": place,
        "form_type": "10-K",
        "filing_date": "2025-03-01",
    }
    return {
        "chunk_id": f"{accession(filing)}_{place}",
        "document_text": head + noise[start : start + _TEXT - len(head)],
        "metadata_json": json.dumps(metadata),
    }


def main() -> None:
    """Writes the data set at its true size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--test", action="store_true", help="with a test split")
    options = parser.parse_args()
    rows = write(options.folder, Sizes(), test=options.test)
    print(f"{len(rows):,} questions, {Sizes().chunks:,} chunks in {options.folder}")


if __name__ == "__main__":
    main()
