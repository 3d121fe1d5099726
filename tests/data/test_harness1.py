"""A subset of Harness-1's data, prepared from a small copy of its layout and schema with all that is odd about it."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness1_data import Sizes, accession, write, write_table
from jaxsearchrl.data import harness1
from jaxsearchrl.data.__main__ import main
from jaxsearchrl.data.harness1 import Harness1Options, prepare_harness1
from jaxsearchrl.data.harness1_draw import draw
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.tasks.curated.data import check_gold, load_tasks
from jaxsearchrl.tasks.curated.demonstrations import load_demonstrations

SMALL = Sizes(filings=300, chunks=6_000, shards=3, families=(60, 40, 20), sft=40, test=40, shared=20, absent=0.05)
OPTIONS = Harness1Options(train_size=32, dev_size=16, random_distractors=600)


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("harness1") / "raw"
    write(folder, SMALL)
    return folder


@pytest.fixture(scope="module")
def out(raw) -> Path:
    prepare_harness1(str(raw), raw.parent / "out", OPTIONS)
    return raw.parent / "out"


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files but the search index, which is made beside the corpus."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if ".index" not in name}


def gold_of(tasks) -> set[str]:
    return {chunk_id for task in tasks for fact in task.facts for chunk_id in fact.chunk_ids}


def test_what_is_written_is_what_the_program_trains_on(out):
    train, dev = load_tasks(out / "train.jsonl"), load_tasks(out / "dev.jsonl")
    index = open_or_build(out / "corpus.jsonl")
    check_gold([*train, *dev], index, "tasks")
    document = index.read(sorted(gold_of(train))[0])
    assert document is not None
    assert document.title == f"Company {int(document.id[:10])} · 10-K · 2025-03-01"
    assert [sum(len(task.facts) == count for task in train) for count in (3, 5, 7)] == [16, 10, 6]
    assert [sum(len(task.facts) == count for task in dev) for count in (3, 5, 7)] == [8, 5, 3]
    assert [task.id for task in dev] == sorted(task.id for task in dev)
    assert all(task.facts[-1].is_final_answer and not task.facts[0].is_final_answer for task in train)
    assert manifest_of(out)["overlaps_with_train"] == {"dev": {"family": 0, "gold": 0, "text": 0}}
    families = [task.id.rsplit("_", 1)[0] for task in (*train, *dev)]
    assert len(set(families)) == len(families)
    assert not gold_of(train) & gold_of(dev)


def test_the_corpus_is_gold_its_neighbours_and_a_hashed_part_of_the_rest(out):
    gold = gold_of([*load_tasks(out / "train.jsonl"), *load_tasks(out / "dev.jsonl")])
    everything = [f"{accession(filing)}_{place}" for filing in range(300) for place in range(20)]
    near = {
        f"{chunk_id.rpartition('_')[0]}_{int(chunk_id.rpartition('_')[2]) + step}"
        for chunk_id in gold
        for step in range(-4, 5)
    }
    kept = [row["_id"] for row in rows_of(out / "corpus.jsonl")]
    assert kept == [chunk_id for chunk_id in everything if chunk_id in set(kept)]  # the published order
    drawn = set(kept) - near
    assert gold <= near & set(everything) <= set(kept)
    counts = manifest_of(out)["corpus"]
    assert counts == {
        "chunks": len(kept),
        "gold": len(gold),
        "neighbours": len(near & set(everything)) - len(gold),
        "drawn": len(drawn),
        "repeated": 0,
        "share_drawn": 0.1,
    }
    # a binomial of p = 0.1: within four standard deviations
    others = 6_000 - len(near & set(everything))
    assert abs(len(drawn) - 0.1 * others) < 4 * (0.09 * others) ** 0.5


def test_every_run_gives_the_same_bytes_and_sizes_share_the_draw(raw, out, tmp_path):
    prepare_harness1(str(raw), tmp_path / "again", OPTIONS)
    assert contents(tmp_path / "again") == contents(out)
    smaller = Harness1Options(train_size=16, dev_size=16, random_distractors=600)
    prepare_harness1(str(raw), tmp_path / "smaller", smaller)
    assert (tmp_path / "smaller/dev.jsonl").read_bytes() == (out / "dev.jsonl").read_bytes()
    drawn = {folder: manifest_of(folder)["corpus"]["drawn"] for folder in (out, tmp_path / "smaller")}
    # fewer chunks are neighbours, so more of the same hashed ones count as drawn
    assert drawn[tmp_path / "smaller"] >= drawn[out]
    other = Harness1Options(train_size=32, dev_size=16, random_distractors=600, seed=7)
    prepare_harness1(str(raw), tmp_path / "other", other)
    assert (tmp_path / "other/dev.jsonl").read_bytes() != (out / "dev.jsonl").read_bytes()


def test_a_second_run_checks_and_other_options_or_another_input_are_refused(raw, out, monkeypatch):
    before = contents(out)
    monkeypatch.setattr(harness1, "read_queries", lambda *_, **__: pytest.fail("read again"))
    assert prepare_harness1(str(raw), out, OPTIONS) == manifest_of(out)
    with pytest.raises(UserError, match="was made with another train_size"):
        prepare_harness1(str(raw), out, Harness1Options(train_size=31, dev_size=16, random_distractors=600))
    assert contents(out) == before


def test_questions_whose_gold_no_shard_has_are_left_out_and_counted(raw, out):
    lacking = {f"{accession(filing)}_25" for filing in range(300)}  # five beyond a filing's last
    tasks = [*load_tasks(out / "train.jsonl"), *load_tasks(out / "dev.jsonl")]
    assert not gold_of(tasks) & lacking
    left_out = manifest_of(out)["left_out"]
    chunks, queries = left_out["gold chunks that the corpus lacks"], left_out["queries whose gold the corpus lacks"]
    assert set(chunks) <= lacking
    assert len(chunks) == len(queries) > 5
    named = f"* queries whose gold the corpus lacks: {len(queries)}, such as {', '.join(queries[:5])}\n"
    assert named in (out / "README.md").read_text()


def test_a_corpus_that_lacks_most_gold_is_refused(raw, tmp_path):
    (tmp_path / "raw/data").mkdir(parents=True)
    (tmp_path / "raw/data/train-00000-of-00001.parquet").symlink_to(raw / "data/train-00000-of-00001.parquet")
    (tmp_path / "raw/corpus").mkdir()
    (tmp_path / "raw/corpus/train-00000.parquet").symlink_to(raw / "corpora/sec/train/train-00002.parquet")
    with pytest.raises(UserError, match=r"lack gold chunks of \d+ of 200 questions, such as fam"):
        prepare_harness1(str(tmp_path / "raw"), tmp_path / "out", OPTIONS)
    assert not (tmp_path / "out").exists()


def test_a_shard_that_is_missing_is_named(raw, tmp_path):
    (tmp_path / "raw/corpora/sec/train").mkdir(parents=True)
    (tmp_path / "raw/data").symlink_to(raw / "data")
    for number in (0, 2):
        name = f"corpora/sec/train/train-{number:05d}.parquet"
        (tmp_path / "raw" / name).symlink_to(raw / name)
    with pytest.raises(UserError, match=r"shards 0 to 2 once; found train-00000.parquet, train-00002.parquet"):
        prepare_harness1(str(tmp_path / "raw"), tmp_path / "out", OPTIONS)


@pytest.fixture
def with_test(tmp_path) -> Path:
    write(tmp_path / "raw", SMALL, test=True)
    return tmp_path / "raw"


def plant(folder: Path, **changes) -> str:
    """Adds to the test split a copy of a training question, changed; returns that question's id."""
    from pyarrow import parquet

    prepare_harness1(str(folder), folder.parent / "first", Harness1Options(16, 16, 600, leaks="leave_out"))
    task = load_tasks(folder.parent / "first/train.jsonl")[0]
    path = folder / "data/test-00000-of-00001.parquet"
    facts = json.dumps(
        [{"fact": "f", "chunk_ids": [f"{accession(299)}_{n}"], "is_final_answer": False} for n in range(3)]
    )
    row = {"stage": "test", "dataset_name": "sec", "query_id": "own_0", "query": "other?", "document_ids_json": facts}
    values = {"query_id": task.id, "query": f"  {task.query.upper()} ", "document_ids_json": gold_text(task)}
    row |= {key: values[key] for key in changes}
    write_table(path, [*parquet.read_table(path).to_pylist(), row])
    return row["query_id"]


def gold_text(task) -> str:
    return json.dumps([{"fact": "f", "chunk_ids": [task.facts[0].chunk_ids[0]], "is_final_answer": True}])


@pytest.mark.parametrize(
    ("column", "shared"), [("query_id", "family"), ("document_ids_json", "gold"), ("query", "text")]
)
def test_a_test_question_that_training_gives_away_is_refused_or_left_out(with_test, tmp_path, column, shared):
    planted = plant(with_test, **{column: True})
    with pytest.raises(UserError, match="test questions share something with a training question") as error:
        prepare_harness1(str(with_test), tmp_path / "out", Harness1Options(16, 16, 600))
    assert not (tmp_path / "out").exists()
    assert "--leaks=leave_out" in str(error.value)
    before = len(load_tasks(tmp_path / "first/test.jsonl"))
    manifest = prepare_harness1(str(with_test), tmp_path / "out", Harness1Options(16, 16, 600, leaks="leave_out"))
    assert manifest["overlaps_with_train"]["test"] == {"family": 0, "gold": 0, "text": 0}
    reasons = {name: count for name, count in manifest["left_out"]["test"].items() if shared in name}
    assert sum(reasons.values()) >= 1
    kept = load_tasks(tmp_path / "out/test.jsonl")
    assert len(kept) == before
    assert planted not in {task.id for task in kept}


def test_the_card_counts_what_the_files_share_and_trusts_no_draw(raw, tmp_path, monkeypatch):
    def leaking(*arguments):
        drawn = draw(*arguments)
        return replace(drawn, dev=drawn.train[:3] + drawn.dev)

    monkeypatch.setattr(harness1, "draw", leaking)
    manifest = prepare_harness1(str(raw), tmp_path / "out", Harness1Options(train_size=8, dev_size=8))
    assert manifest["overlaps_with_train"] == {"dev": {"family": 3, "gold": 3, "text": 3}}


def test_one_id_in_train_and_test_stays_two_questions(with_test, tmp_path):
    prepare_harness1(str(with_test), tmp_path / "out", Harness1Options(32, 16, 600, leaks="leave_out"))
    own = {task.id: task.query for split in ("train", "dev") for task in load_tasks(tmp_path / f"out/{split}.jsonl")}
    test = {task.id: task.query for task in load_tasks(tmp_path / "out/test.jsonl")}
    assert all(query.startswith("What of") for query in own.values())
    assert all(query.startswith("Test question") for query in test.values())
    index = open_or_build(tmp_path / "out/corpus.jsonl")
    check_gold(load_tasks(tmp_path / "out/test.jsonl"), index, "test")
    # an id that only a held-out question has may be in the test split too: it is another question
    assert {row["_id"] for row in rows_of(tmp_path / "out/queries.jsonl")} == own.keys()


def test_the_files_of_beir_say_what_the_tasks_say(out):
    tasks = {split: load_tasks(out / f"{split}.jsonl") for split in ("train", "dev")}
    queries = {row["_id"]: row["text"] for row in rows_of(out / "queries.jsonl")}
    assert queries == {task.id: task.query for part in tasks.values() for task in part}
    for split, part in tasks.items():
        head, *lines = (out / f"qrels/{split}.tsv").read_text().splitlines()
        assert head == "query-id\tcorpus-id\tscore"
        pairs = {tuple(line.split("\t")) for line in lines}
        assert pairs == {(task.id, chunk_id, "1") for task in part for chunk_id in gold_of([task])}
        assert len(pairs) == len(lines)
        facts = rows_of(out / f"fact_qrels/{split}.jsonl")
        assert len(facts) == sum(len(task.facts) for task in part)
        assert set(facts[0]) == {"query_id", "fact_id", "fact", "chunk_ids", "is_final_answer"}


def test_demonstrations_are_of_this_corpus_and_of_no_held_out_question(out):
    shown = load_demonstrations(out / "demonstrations.jsonl")
    index = open_or_build(out / "corpus.jsonl")
    dev = load_tasks(out / "dev.jsonl")
    assert not {task.id.rsplit("_", 1)[0] for task in dev} & {one.id.rsplit("_", 1)[0] for one in shown}
    assert not gold_of(dev) & gold_of(one.task for one in shown)
    for demonstration in shown:
        assert all(any(index.read(i) for i in fact.chunk_ids) for fact in demonstration.task.facts)
    counts = manifest_of(out)["demonstrations"]
    assert counts["rows"] == len(shown) > 0
    left_out = counts["rows left out"]
    assert left_out["data set web"] == 10
    assert counts["rows"] + sum(left_out.values()) == 40
    assert counts["changes in the others"]["calls of verify"] == len(shown)


def test_the_command_prints_the_card_and_refuses_bad_arguments(raw, tmp_path, capsys):
    sizes = ["--train_size=16", "--dev_size=16", "--random_distractors=1000000"]
    assert main(["harness1", f"--input={raw}", f"--output={tmp_path / 'out'}", *sizes]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "out/README.md").read_text().startswith(printed)
    assert "## Demonstrations" in printed
    assert "6,000 chunks: " in printed  # as many as there are takes all
    assert main(["harness1", f"--input={raw}", f"--output={tmp_path / 'b'}", "--train_size=2000"]) == 2
    assert "--train_size=2000: only " in capsys.readouterr().err
    assert main(["harness1", f"--input={raw}", f"--output={tmp_path / 'b'}", "--dev_size=200"]) == 2
    assert "--dev_size=200: only " in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    for bad in ("--train_size=0", "--random_distractors=-1", "--leaks=ignore"):
        with pytest.raises(SystemExit):
            main(["harness1", f"--input={raw}", f"--output={tmp_path / 'b'}", bad])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "is empty"),
        ("./nowhere/at/all", "is no folder; name one with data/train-"),
        ("EMPTY", "no query table; wanted data/train-00000-of-00001.parquet"),
    ],
)
def test_what_is_no_data_set_is_refused(tmp_path, given, words):
    (tmp_path / "EMPTY").mkdir()
    with pytest.raises(UserError, match=words):
        prepare_harness1(str(tmp_path / given) if given == "EMPTY" else given, tmp_path / "out", OPTIONS)


def test_a_hub_that_does_not_answer_says_what_to_download(tmp_path, monkeypatch):
    import huggingface_hub

    asked = {}

    def fails(*names, **more):
        asked.update(more, names=names)
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(UserError, match=r"revision v2 of it \(OSError: no route to host\)") as error:
        prepare_harness1("pat-jj/harness-1-train-data@v2", tmp_path / "out", OPTIONS)
    assert "hf download pat-jj/harness-1-train-data" in str(error.value)
    assert asked["names"] == ("pat-jj/harness-1-train-data",)
    assert asked["allow_patterns"] == ["data/*.parquet", "corpora/sec/train/*.parquet"]


def test_random_is_stable():
    """The draw relies on what Python promises: the same shuffle of the same list by the same seed."""
    rng, items = random.Random(42), list(range(10))
    rng.shuffle(items)
    assert items == [7, 3, 2, 8, 5, 6, 9, 4, 0, 1]
