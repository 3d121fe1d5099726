import ast
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import tantivy

from jaxsearchrl.errors import UserError
from jaxsearchrl.search import build, manifest, terms
from jaxsearchrl.search.index import LocalIndex, open_or_build
from jaxsearchrl.search.options import IndexOptions

_ROWS = [("a", "Owl", "mail"), ("b", "Broom", "fast")]


def _snapshot(folder):
    return {p: (p.stat().st_mtime_ns, p.stat().st_size, p.stat().st_ino) for p in folder.rglob("*")}


def test_an_unchanged_corpus_reuses_its_index(make_corpus):
    path = make_corpus(_ROWS)
    first = open_or_build(path)
    folder = path.with_name("corpus.jsonl.index")
    before = _snapshot(folder)
    second = open_or_build(path)
    assert second.fingerprint == first.fingerprint
    assert second.search("owl", 1) == first.search("owl", 1) != []
    assert _snapshot(folder) == before


def test_a_file_that_was_only_touched_or_copied_is_unchanged(make_corpus):
    path = make_corpus(_ROWS)
    index = open_or_build(path)
    os.utime(path, ns=(1, 1))
    assert open_or_build(path).fingerprint == index.fingerprint


@pytest.mark.parametrize(
    "change", [lambda text: text + '{"id": "c", "text": "x"}\n', lambda text: text.replace("mail", "male")]
)
def test_a_changed_corpus_is_refused_with_the_fix_and_deleting_rebuilds(make_corpus, change):
    path = make_corpus(_ROWS)
    index = open_or_build(path)
    stat = path.stat()
    path.write_text(change(path.read_text()))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(UserError, match=r"corpus\.jsonl\.index was built from.*delete that folder"):
        open_or_build(path)
    build.shutil.rmtree(path.with_name("corpus.jsonl.index"))
    assert open_or_build(path).fingerprint != index.fingerprint


def test_the_fingerprint_follows_content_not_place_and_the_analyser(make_corpus, tmp_path, monkeypatch):
    one = open_or_build(make_corpus(_ROWS))
    two = open_or_build(make_corpus(_ROWS, "copy.jsonl"), tmp_path / "deep" / "er" / "index")
    other = open_or_build(make_corpus(_ROWS[:1], "other.jsonl"))
    assert one.fingerprint == two.fingerprint != other.fingerprint
    monkeypatch.setattr(manifest.words, "ANALYSER", "another")
    assert open_or_build(make_corpus(_ROWS, "again.jsonl")).fingerprint != one.fingerprint


def test_an_index_of_another_version_is_refused(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    open_or_build(path)
    monkeypatch.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
    with pytest.raises(UserError, match="another version"):
        open_or_build(path)


def test_a_folder_that_is_no_index_is_left_alone(make_corpus, tmp_path):
    path = make_corpus(_ROWS)
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_text("meow")
    with pytest.raises(UserError, match="not a search index"):
        open_or_build(path, folder)
    assert [p.name for p in folder.iterdir()] == ["cat.jpg"]
    with pytest.raises(UserError, match="not a search index"):
        LocalIndex(tmp_path / "nowhere")


def test_a_damaged_index_is_refused_with_the_fix(make_corpus):
    path = make_corpus(_ROWS)
    open_or_build(path)
    folder = path.with_name("corpus.jsonl.index")
    (folder / "table.bin").write_bytes(b"")
    with pytest.raises(UserError, match="delete the folder to rebuild"):
        open_or_build(path)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="rebuild"):
        open_or_build(path)


@pytest.mark.parametrize("name", ["documents.bin", "ids.bin"])
def test_a_partly_copied_index_is_refused_with_the_fix(make_corpus, name):
    path = make_corpus(_ROWS)
    open_or_build(path)
    file = path.with_name("corpus.jsonl.index") / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"{name} has \d+ bytes instead of \d+\); delete the folder to rebuild"):
        open_or_build(path)


@pytest.mark.parametrize(
    ("name", "missing"), [("table.bin", 1), ("table.bin", 24), ("id_table.bin", 16), ("grams.bin", 8)]
)
def test_a_table_that_is_not_whole_is_refused_with_the_fix(make_corpus, name, missing):
    path = make_corpus(_ROWS)
    open_or_build(path)
    file = path.with_name("corpus.jsonl.index") / name
    file.write_bytes(file.read_bytes()[:-missing])
    with pytest.raises(UserError, match="delete the folder to rebuild"):
        open_or_build(path)


def test_a_missing_or_empty_corpus_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"nope\.jsonl: no such corpus file or folder"):
        open_or_build(tmp_path / "nope.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no documents"):
        open_or_build(tmp_path / "empty.jsonl")


def test_an_index_that_cannot_be_written_is_the_users_error(make_corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the index"):
        open_or_build(make_corpus(_ROWS), tmp_path / "file" / "index")


def test_duplicate_ids_are_refused_with_both_lines_and_leave_nothing(make_corpus, tmp_path):
    path = make_corpus([("x", "", "1"), ("y", "", "2"), ("z", "", "3"), ("y", "", "4")])
    with pytest.raises(UserError, match=r"corpus\.jsonl:4: the id 'y' is already that of \S+corpus\.jsonl:2;"):
        open_or_build(path)
    assert {p.name for p in tmp_path.iterdir()} == {"corpus.jsonl", "corpus.jsonl.index.lock"}


def test_a_corpus_that_grows_while_it_is_read_is_refused(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    write_store = build.write_store

    def slowly(folder, documents):
        count = write_store(folder, documents)
        path.write_text(path.read_text() + '{"id": "c", "text": "late"}\n')
        return count

    monkeypatch.setattr(build, "write_store", slowly)
    with pytest.raises(UserError, match="changed while it was read"):
        open_or_build(path)


_KILLED = """
import os, signal, sys
from jaxsearchrl.search import build, manifest, terms
from jaxsearchrl.search.index import open_or_build
real = getattr({module}, {name!r})
def kill(*arguments, **options):
    if {after}:
        real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
{module}.{name} = kill
open_or_build(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        ("build", "write_store", True),
        ("build", "flush", True),
        ("terms", "flush", True),
        ("terms.os", "rename", True),
        ("build", "write_terms", True),
        ("build", "write_grams", True),
        ("build.os", "rename", False),
    ],
)
def test_a_killed_build_is_not_trusted_and_the_next_one_works(make_corpus, tmp_path, module, name, after):
    path = make_corpus(_ROWS)
    code = _KILLED.format(module=module, name=name, after=after)
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "corpus.jsonl.index.unfinished").exists()
    assert not (tmp_path / "corpus.jsonl.index").exists()
    assert len(open_or_build(path).search("owl", 5)) == 1
    assert not (tmp_path / "corpus.jsonl.index.unfinished").exists()


def test_threads_that_build_at_once_build_once_and_all_search(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    fill, fills = build._write_store, []
    monkeypatch.setattr(build, "_write_store", lambda *arguments: (fills.append(1), fill(*arguments)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: open_or_build(path).search("owl", 1)[0].document.id, range(4)))
    assert found == ["a"] * 4
    assert len(fills) == 1


def test_opening_an_index_parses_no_python(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    open_or_build(path)

    def not_in_two_threads(*_, **__):  # python/cpython#106905
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(ast, "literal_eval", not_in_two_threads)
    assert len(open_or_build(path).search("owl", 5)) == 1


def test_processes_that_build_at_once_all_search(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": str(n), "text": f"owl number {n}"}) + "\n" for n in range(3000)))
    command = [sys.executable, "-m", "jaxsearchrl.search", "search", str(path), "2999"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results = [(*process.communicate(timeout=60), process.returncode) for process in running]
    assert [code for _, _, code in results] == [0, 0, 0], results
    assert len({output for output, _, _ in results}) == 1
    assert "owl number 2999" in results[0][0]


def test_a_reader_writes_nothing_and_lives_beside_a_writer(make_corpus):
    path = make_corpus(_ROWS)
    index = open_or_build(path)
    run = path.with_name("corpus.jsonl.index") / "terms" / "00000"
    for lock in run.glob(".*.lock"):
        lock.unlink()
    before = _snapshot(run)
    assert open_or_build(path).search("owl", 1) == index.search("owl", 1) != []
    assert _snapshot(run) == before
    writer = tantivy.Index.open(str(run)).writer()
    assert open_or_build(path).search("owl", 1) == index.search("owl", 1)
    del writer


def test_an_index_may_be_named_by_a_relative_path(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    monkeypatch.chdir(path.parent)
    assert open_or_build("corpus.jsonl", "made/here").size == 2
    assert len(LocalIndex("made/here").search("owl", 2)) == 1


@pytest.fixture
def small_runs(monkeypatch):
    """Runs of a few documents each."""
    monkeypatch.setattr(terms, "LEAST_RUN", 400)
    monkeypatch.setattr(terms, "RUNS", 10**6)


_MANY = [(str(n), f"title {n % 7}", f"owl number {n} of {n % 10} and {n % 3}") for n in range(100)]


def test_the_number_of_threads_changes_no_score(make_corpus, small_runs, monkeypatch):
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(terms, "cores", lambda cores=cores: cores)
        index = open_or_build(make_corpus(_MANY, f"{cores}.jsonl"))
        assert index._searcher.num_segments > 5
        found.append([index.search(query, 100) for query in ("owl", "number 3 of 7", "title 5 and 2", "1 2 3 4 5 6 7")])
    assert found[0] == found[1]


def test_runs_together_score_as_one(make_corpus, small_runs, monkeypatch):
    runs = open_or_build(make_corpus(_MANY))
    monkeypatch.undo()
    one = open_or_build(make_corpus(_MANY, "one.jsonl"))
    assert (runs._searcher.num_segments > 5, one._searcher.num_segments) == (True, 1)
    for query in ("owl", "number 3 of 7", "title 5 and 2"):
        a, b = runs.search(query, 100), one.search(query, 100)
        assert [hit.score for hit in a] == pytest.approx([hit.score for hit in b], rel=1e-6)


def test_a_killed_build_goes_on_where_it_was(make_corpus, tmp_path, small_runs, monkeypatch):
    path = make_corpus(_MANY)
    monkeypatch.setattr(terms, "cores", lambda: 1)
    write, written = terms._write_run, []

    def three_runs(run, *arguments):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(run.name)
        write(run, *arguments)

    monkeypatch.setattr(terms, "_write_run", three_runs)
    with pytest.raises(KeyboardInterrupt):
        open_or_build(path)
    assert not (tmp_path / "corpus.jsonl.index").exists()
    runs = tmp_path / "corpus.jsonl.index.unfinished" / "terms"
    assert sorted(run.name for run in runs.iterdir()) == written == ["00000", "00001", "00002"]
    again, write_store = [], build._write_store
    monkeypatch.setattr(terms, "_write_run", lambda run, *rest: (again.append(run.name), write(run, *rest)))
    monkeypatch.setattr(build, "_write_store", None)  # is not needed again
    index = open_or_build(path)
    assert again[0] == "00003"
    assert [hit.document.id for hit in index.search("owl", 100)] == [row[0] for row in _MANY]
    monkeypatch.setattr(terms, "_write_run", write)
    monkeypatch.setattr(build, "_write_store", write_store)
    whole = open_or_build(make_corpus(_MANY, "whole.jsonl"))
    assert index.search("number 3 of 7", 100) == whole.search("number 3 of 7", 100)


def test_what_a_killed_build_left_of_another_corpus_is_not_used(make_corpus, monkeypatch):
    write_terms = build.write_terms

    def stop(*arguments):
        write_terms(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_terms", stop)
    with pytest.raises(KeyboardInterrupt):
        open_or_build(make_corpus(_ROWS))
    monkeypatch.undo()
    path = make_corpus([("c", "Cat", "claws")])
    assert open_or_build(path).search("owl", 5) == []
    assert open_or_build(path).size == 1


def test_a_run_that_fails_ends_the_build_with_its_fault(make_corpus, tmp_path, small_runs, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(terms, "_write_run", full)
    with pytest.raises(UserError, match="No space left"):
        open_or_build(make_corpus(_MANY))
    assert {p.name for p in tmp_path.iterdir()} == {"corpus.jsonl", "corpus.jsonl.index.lock"}


def test_a_corpus_of_shards_is_one_corpus(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for shard in range(3):
        lines = [json.dumps({"id": f"{shard}-{n}", "text": f"owl {shard}"}) + "\n" for n in range(4)]
        (folder / f"{shard}.jsonl").write_text("".join(lines))
    index = open_or_build(folder)
    assert (index.size, len(index.manifest.files)) == (12, 3)
    assert [hit.document.id for hit in index.grep("owl [12]", 99)] == [f"{s}-{n}" for s in (1, 2) for n in range(4)]
    os.utime(folder / "1.jsonl", ns=(1, 1))
    assert open_or_build(folder).fingerprint == index.fingerprint
    (folder / "2.jsonl").rename(folder / "4.jsonl")
    with pytest.raises(UserError, match=r"shards is not what the index .* was built from \(12 documents\)"):
        open_or_build(folder)
    (folder / "4.jsonl").rename(folder / "2.jsonl")
    (folder / "3.jsonl").write_text('{"id": "1-2", "text": "again"}')
    with pytest.raises(UserError, match="is not what the index"):
        open_or_build(folder)
    with pytest.raises(UserError, match=r"3\.jsonl:1: the id '1-2' is already that of \S+1\.jsonl:3"):
        open_or_build(folder, tmp_path / "other")


def test_notes_are_indexed_and_other_files_are_told(tmp_path, capsys):
    (tmp_path / "notes" / "a").mkdir(parents=True)
    (tmp_path / "notes" / "a" / "owl.md").write_text("# Owls\n" + "word " * 300 + "flight")
    (tmp_path / "notes" / "owl.jpg").write_text("")
    index = open_or_build(tmp_path / "notes")
    assert "1 files of other kinds are left out (owl.jpg)" in capsys.readouterr().err
    assert [hit.document.id for hit in index.search("flight", 5)] == ["a/owl.md#2"]
    assert index.read("a/owl.md#1").title == "Owls"
    (tmp_path / "notes" / "a").rename(tmp_path / "notes" / "b")
    with pytest.raises(UserError, match="is not what the index"):
        open_or_build(tmp_path / "notes")
    assert open_or_build(tmp_path / "notes", tmp_path / "again").fingerprint != index.fingerprint


def test_an_index_of_other_options_is_refused_with_the_fix(make_corpus, tmp_path):
    path = make_corpus(_ROWS)
    plain = open_or_build(path, options=IndexOptions(stemming=False))
    assert open_or_build(path).fingerprint == plain.fingerprint
    with pytest.raises(UserError, match=r"other options \(stemming=False, not True\): delete that folder"):
        open_or_build(path, options=IndexOptions())
    assert open_or_build(path, tmp_path / "other", options=IndexOptions()).fingerprint != plain.fingerprint


def test_options_decide_which_words_match(make_corpus):
    rows = [("a", "the Owl", "flies"), ("b", "", "café fly")]
    for options, query, ids in [
        (IndexOptions(), "flying cafe", ["b", "a"]),
        (IndexOptions(stemming=False), "fly", ["b"]),
        (IndexOptions(diacritics=True), "cafe", []),
        (IndexOptions(diacritics=True), "CAFÉS", ["b"]),
        (IndexOptions(), "the", ["a"]),
        (IndexOptions(stop_words=False), "the", []),
        (IndexOptions(title_weight=0), "owl", []),
    ]:
        path = make_corpus(rows)
        build.shutil.rmtree(path.with_name("corpus.jsonl.index"), ignore_errors=True)
        assert [hit.document.id for hit in open_or_build(path, options=options).search(query, 5)] == ids, (
            options,
            query,
        )


@pytest.mark.parametrize("values", [{"title_weight": -1}, {"chunk_words": 0}, {"chunk_overlap": 200}])
def test_options_without_sense_are_refused(values):
    with pytest.raises(UserError, match=next(iter(values))):
        IndexOptions(**values)
