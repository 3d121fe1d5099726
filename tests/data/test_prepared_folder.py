"""A folder is made once: whole or not at all, and never over what somebody else put there."""

import hashlib
import json
from pathlib import Path

import pytest

from jaxsearchrl.data import prepared_folder
from jaxsearchrl.data.prepared_folder import prepare_folder
from jaxsearchrl.errors import UserError

RECIPE = {"data_set": "sums", "seed": 42, "input": {"train": ["aa"], "test": ["bb"]}}


def write(folder: Path) -> dict:
    files = {"a.jsonl": b"a\n", "b.jsonl": "ö\n".encode()}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "scratch").write_text("is not kept")
    return {"note": "ö", "files": {name: {"sha256": hashlib.sha256(c).hexdigest()} for name, c in files.items()}}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(folder: Path, recipe=RECIPE, write=write) -> str:
    before = contents(folder)
    with pytest.raises(UserError) as error:
        prepare_folder(folder, recipe, write)
    assert contents(folder) == before
    return str(error.value)


def test_the_files_and_the_manifest_are_there_and_nothing_else(tmp_path):
    folder = tmp_path / "new" / "folder"
    manifest = prepare_folder(folder, RECIPE, write)
    assert set(contents(folder)) == {"a.jsonl", "b.jsonl", "manifest.json"}
    assert json.loads((folder / "manifest.json").read_text("utf-8")) == manifest
    assert manifest["recipe"] == RECIPE
    assert manifest["note"] == "ö"


def test_the_same_recipe_again_only_checks(tmp_path):
    manifest = prepare_folder(tmp_path, RECIPE, write)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert prepare_folder(tmp_path, dict(reversed(RECIPE.items())), lambda _: pytest.fail("made again")) == manifest
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 7}, "was made with another seed: choose another --output"),
        ({"input": {"train": ["aa"], "test": ["cc"]}, "seed": 7}, "another seed, input"),
        ({"more": 1}, "another more"),
    ],
)
def test_another_recipe_is_refused(tmp_path, change, words):
    prepare_folder(tmp_path, RECIPE, write)
    assert words in refusal(tmp_path, RECIPE | change)


def test_a_file_that_was_changed_or_is_missing_is_named(tmp_path):
    prepare_folder(tmp_path, RECIPE, write)
    (tmp_path / "b.jsonl").write_text("mine")
    assert f"{tmp_path / 'b.jsonl'} is missing or was changed since" in refusal(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    assert f"{tmp_path / 'b.jsonl'} is missing or was changed since" in refusal(tmp_path)


def test_files_of_others_are_never_replaced(tmp_path):
    (tmp_path / "b.jsonl").write_text("mine")
    assert f"{tmp_path / 'b.jsonl'} exists and is another file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "manifest", ["", "{}", "[]", '{"recipe": 1, "files": {}}', '{"recipe": {}, "files": {"a": "x"}}']
)
def test_a_manifest_of_something_else_is_refused(tmp_path, manifest):
    (tmp_path / "manifest.json").write_text(manifest)
    assert "manifest.json is not from here: choose another --output" in refusal(tmp_path)


def test_what_an_interrupted_preparation_leaves_is_completed(tmp_path, monkeypatch):
    replace, moved = prepared_folder.os.replace, []

    def interrupted(source, target):
        if moved:
            raise KeyboardInterrupt
        moved.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(prepared_folder.os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare_folder(tmp_path, RECIPE, write)
    assert set(contents(tmp_path)) == {"a.jsonl"}
    prepare_folder(tmp_path, RECIPE, write)
    assert set(contents(tmp_path)) == {"a.jsonl", "b.jsonl", "manifest.json"}


def test_an_input_that_cannot_be_used_leaves_no_folder(tmp_path):
    def fails(folder):
        (folder / "part").write_text("x")
        raise UserError("no such column")

    with pytest.raises(UserError, match="no such column"):
        prepare_folder(tmp_path / "new", RECIPE, fails)
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    refusal(tmp_path / "old", write=fails)
    assert not list((tmp_path / "old").iterdir())


def test_a_preparation_that_fails_leaves_nothing(tmp_path):
    def fails(folder: Path):
        write(folder)
        raise UserError("row 7")

    assert refusal(tmp_path, write=fails) == "row 7"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output=.*file/folder: cannot be written"):
        prepare_folder(tmp_path / "file/folder", RECIPE, write)
