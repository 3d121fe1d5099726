import json
import subprocess
import sys
from collections import Counter

import pytest

from jaxsearchrl.search import bench, near_ids
from jaxsearchrl.search.__main__ import main
from jaxsearchrl.search.bench_others import others

_ROWS = [("007", "Owl", "Owls carry\nthe mail."), ("a/b c", "Broom", "Fast ones.")]


def test_build_search_grep_and_read(make_corpus, tmp_path, capsys):
    path = str(make_corpus(_ROWS))
    assert main(["build", path, "--index_dir", str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "manifest.json").exists()
    assert "2 documents" in capsys.readouterr().out
    assert main(["search", path, "owls", "-k", "1"]) == 0
    assert "007  Owl\n     Owls carry the mail." in capsys.readouterr().out
    assert main(["grep", path, "^bro+m"]) == 0
    assert "a/b c  Broom" in capsys.readouterr().out
    assert main(["grep", path, "OWLS", "--case_sensitive"]) == 1
    assert main(["read", path, "a/b c"]) == 0
    assert capsys.readouterr().out == "Broom\nFast ones.\n"
    assert main(["read", path, "a/b c", "--start", "5", "--chars", "2"]) == 0
    assert capsys.readouterr() == ("Broom\non\n", "truncated: characters 5 to 7 of 10\n")
    assert main(["grep", path, "o", "--skip", "1"]) == 0
    assert capsys.readouterr().out.startswith("  2  a/b c  Broom")
    assert main(["grep", path, "o", "--skip", "2"]) == 1


def test_info_says_what_the_index_was_made_from(make_corpus, capsys):
    path = str(make_corpus(_ROWS))
    assert main(["build", path, "--no-stemming", "--title_weight", "3"]) == 0
    fingerprint = capsys.readouterr().out.split()[-1]
    assert main(["info", path]) == 0
    lines = capsys.readouterr().out
    for part in ("documents    2\n", "bytes        42\n", "stemming=False", "title_weight=3", "tantivy", fingerprint):
        assert part in lines
    assert main(["build", path]) == 0  # says nothing of options
    assert main(["build", path, "--stemming"]) == 2
    assert "stemming=False, not True, title_weight=3, not 1" in capsys.readouterr().err
    assert main(["build", path + "2", "--chunk_overlap", "200"]) == 2


def test_bad_input_is_told_without_a_traceback(make_corpus, capsys):
    path = str(make_corpus(_ROWS))
    for arguments, says in [
        (["read", path, "nope"], "no document 'nope'"),
        (["grep", path, "(?=a)"], "look-ahead"),
        (["search", path + "x", "owl"], "no such corpus file"),
    ]:
        assert main(arguments) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("notes/a.md#9", "the chunks of that source are notes/a.md#1 to notes/a.md#3"),
        ("notes/a.md", "the chunks of that source are notes/a.md#1 to notes/a.md#3"),
        ("0000320193-24-81_7", "the chunks of that source are 0000320193-24-81_0 to 0000320193-24-81_1"),
        ("7", "the nearest ids are '007', "),
        ("Do-1-c", "the nearest ids are 'doc-1-c', 'doc-2-c', "),
        ("nothing\ud800 like it", "the nearest ids are "),
    ],
)
def test_an_unknown_id_is_answered_with_those_that_there_are(make_corpus, capsys, asked, says):
    ids = [*(f"notes/a.md#{n}" for n in (1, 2, 3)), "0000320193-24-81_0", "0000320193-24-81_1"]
    ids += ["doc-2-c", "1007", "007", "doc-1-c"]
    path = str(make_corpus([(name, "", "text") for name in ids]))
    assert main(["read", path, asked]) == 2
    assert f"has no document {asked!r}; {says}" in capsys.readouterr().err


def test_of_a_large_corpus_so_many_ids_are_compared(make_corpus, capsys, monkeypatch):
    monkeypatch.setattr(near_ids, "LOOKED_AT", 3)
    path = str(make_corpus([(f"x{n}", "", "text") for n in range(8)]))
    assert main(["read", path, "x9"]) == 2
    assert "the nearest ids are 'x0', 'x3', 'x6'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *(["search", "owl", "-k", "0"], ["grep", "owl", "-k=-1"], ["grep", "owl", "--skip", "-1"]),
        *(["read", "007", "--around=-1"], ["read", "007", "--start", "-2"], ["read", "007", "--chars=0"]),
        *(["serve", "--port=-1"], ["serve", "--topk=0"], ["serve", "--threads", "0"]),
    ],
)
def test_numbers_that_are_no_counts_are_refused(make_corpus, capsys, words):
    command, *rest = words
    with pytest.raises(SystemExit) as ended:
        main([command, str(make_corpus(_ROWS)), *rest])
    assert ended.value.code == 2
    assert "is no whole number from" in capsys.readouterr().err


def test_bench_measures_what_it_says(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench, "VOCABULARY", 2000)
    monkeypatch.setattr(bench, "ENTITIES", 900)
    monkeypatch.setattr(bench, "QUERIES", 8)
    out = tmp_path / "figures.json"
    assert main(["bench", "--chunks", "300", "--chunk_bytes", "600", "--folder", str(tmp_path), "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["chunks"] == 300
    assert 0.16 < figures["text MB"] < 0.2
    assert figures["build MB/s"] == pytest.approx(figures["text MB"] / figures["build s"])
    for kind in ("literal", "anchored", "alternation", "case-insensitive"):
        assert 0 < figures[f"grep {kind} p50 ms"] <= figures[f"grep {kind} p99 ms"]
    assert all(figures[f"search queries/s, {threads} threads"] > 0 for threads in bench.THREADS)
    assert "read p50 ms" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_bench_of_twenty_thousand_chunks_needs_little_memory(tmp_path):
    # In its own process, since the peak of this one is of all tests that it has run.
    code = (
        "import json, sys; from jaxsearchrl.search import bench; bench.others = lambda *arguments: []; "
        "print(json.dumps(bench.run(20_000, bench.CHUNK_BYTES, 0, sys.argv[1])))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])
    assert 40 < figures["text MB"] < 41
    assert figures["index MB"] < 2 * figures["text MB"]
    assert figures["peak anonymous MB"] < 400


@pytest.fixture
def generated(monkeypatch):
    monkeypatch.setattr(bench, "VOCABULARY", 2000)
    monkeypatch.setattr(bench, "ENTITIES", 900)
    return list(bench.generate(bench.make_words(0), 300, 0))


def test_bm25s_is_measured_on_the_same_text(generated, tmp_path):
    pytest.importorskip("bm25s")
    engine = next(others(lambda: iter(generated), 600_000, tmp_path, 2))
    found, _ = engine.search(generated[7].title)
    assert found[0, 0] == 7


def test_lucene_is_measured_on_the_same_text(generated, tmp_path):
    pytest.importorskip("pyserini")
    *_, engine = others(lambda: iter(generated), 600_000, tmp_path, 2)
    assert generated[7].text[:40] in engine.search(generated[7].title)[0]
    assert engine.search_all([generated[7].title] * 3, 2).size() == 3


def test_the_generated_text_is_seeded_zipfian_and_names_entities(monkeypatch):
    monkeypatch.setattr(bench, "VOCABULARY", 5000)
    monkeypatch.setattr(bench, "ENTITIES", 1000)
    words = bench.make_words(0)
    documents = list(bench.generate(words, 500, 0))
    assert documents == list(bench.generate(bench.make_words(0), 500, 0)) != list(bench.generate(words, 500, 1))
    assert len({document.id for document in documents}) == 500
    assert all(len(document.text.encode()) <= bench.CHUNK_BYTES for document in documents)
    counts = Counter(word for document in documents for word in document.text.split())
    first, tenth, hundredth = (counts[words.words[n]] for n in (0, 9, 99))
    assert 7 < first / tenth < 14
    assert 7 < tenth / hundredth < 14
    assert all(document.title.rpartition(" ")[0] in document.text for document in documents)
