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


def test_bad_input_is_told_without_a_traceback(make_corpus, capsys):
    path = str(make_corpus(_ROWS))
    for arguments, says in [
        (["read", path, "nope"], "no document 'nope'"),
        (["grep", path, "(?=a)"], "look-ahead"),
        (["search", path + "x", "owl"], "no such corpus file"),
    ]:
        assert main(arguments) == 2
        assert says in capsys.readouterr().err
