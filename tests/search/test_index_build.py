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
from jaxsearchrl.search import build
from jaxsearchrl.search.index import LocalIndex, open_or_build

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
    sha256 = build.read_manifest(tmp_path / "deep" / "er" / "index").sha256
    monkeypatch.setattr(build.words, "ANALYSER", "another")
    assert build.fingerprint(sha256) != one.fingerprint


def test_an_index_of_another_version_is_refused(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    open_or_build(path)
    monkeypatch.setattr(build, "FORMAT", build.FORMAT + 1)
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


@pytest.mark.parametrize(("name", "missing"), [("table.bin", 1), ("table.bin", 24), ("id_table.bin", 16)])
def test_a_table_that_is_not_whole_is_refused_with_the_fix(make_corpus, name, missing):
    path = make_corpus(_ROWS)
    open_or_build(path)
    file = path.with_name("corpus.jsonl.index") / name
    file.write_bytes(file.read_bytes()[:-missing])
    with pytest.raises(UserError, match="delete the folder to rebuild"):
        open_or_build(path)


def test_a_missing_or_empty_corpus_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"nope\.jsonl: no such corpus file"):
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
    with pytest.raises(UserError, match=r"corpus\.jsonl:4: the id 'y' is already that of line 2"):
        open_or_build(path)
    assert {p.name for p in tmp_path.iterdir()} == {"corpus.jsonl", "corpus.jsonl.index.lock"}


def test_a_corpus_that_grows_while_it_is_read_is_refused(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    write_store = build.write_store

    def slowly(folder, corpus, rows):
        count = write_store(folder, corpus, rows)
        path.write_text(path.read_text() + '{"id": "c", "text": "late"}\n')
        return count

    monkeypatch.setattr(build, "write_store", slowly)
    with pytest.raises(UserError, match="changed while it was read"):
        open_or_build(path)


_KILLED = """
import os, signal, sys
from jaxsearchrl.search import build
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
        ("build", "_write_terms", True),
        ("build", "_flush", True),
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
    fill, fills = build._fill, []
    monkeypatch.setattr(build, "_fill", lambda *arguments: (fills.append(1), fill(*arguments)))
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
    terms = path.with_name("corpus.jsonl.index") / "tantivy"
    for lock in terms.glob(".*.lock"):
        lock.unlink()
    before = _snapshot(terms)
    assert open_or_build(path).search("owl", 1) == index.search("owl", 1) != []
    assert _snapshot(terms) == before
    writer = tantivy.Index.open(str(terms)).writer()
    assert open_or_build(path).search("owl", 1) == index.search("owl", 1)
    del writer


def test_an_index_may_be_named_by_a_relative_path(make_corpus, monkeypatch):
    path = make_corpus(_ROWS)
    monkeypatch.chdir(path.parent)
    assert open_or_build("corpus.jsonl", "made/here").size == 2
    assert len(LocalIndex("made/here").search("owl", 2)) == 1
