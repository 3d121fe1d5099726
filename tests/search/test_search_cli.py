from jaxsearchrl.search.__main__ import main

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
    assert main(["build", path, "--no-stemming", "--title_weight", "1.5"]) == 0
    fingerprint = capsys.readouterr().out.split()[-1]
    assert main(["info", path]) == 0
    lines = capsys.readouterr().out
    for part in ("documents    2\n", "bytes        42\n", "stemming=False", "title_weight=1.5", "tantivy", fingerprint):
        assert part in lines
    assert main(["build", path]) == 0  # says nothing of options
    assert main(["build", path, "--stemming"]) == 2
    assert "stemming=False, not True, title_weight=1.5, not 2.0" in capsys.readouterr().err
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
