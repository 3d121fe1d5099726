"""A folder of files that were made from some input, and the manifest that says from which.

The manifest is written last. A folder that has one is whole: to make it again from the same input is to check it, and
another input is refused, since what was trained or measured with the files should stay what it was.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxsearchrl.data.assets import sha256_of
from jaxsearchrl.errors import UserError
from jaxsearchrl.strict_json import parse

MANIFEST = "manifest.json"


def prepare_folder(
    folder: Path, recipe: Mapping[str, Any], write: Callable[[Path], Mapping[str, Any]]
) -> dict[str, Any]:
    """The manifest of `folder`, which is filled by `write` unless it holds all that `recipe` makes.

    recipe: what decides the bytes of the files: sha256 of the input, seed, version of the code. Values of JSON.
    write: fills an empty folder and returns what the manifest says beside the recipe: at least `files`, for each file's
        name (which may have one folder in it) a dict that has its `sha256`.
    Raises UserError when the folder was made by another recipe, was changed, holds other files of these names, or
    cannot be written.
    """
    made = False
    try:
        if (folder / MANIFEST).exists():
            return _check(folder, recipe)
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        # Beside its final place, so that a file moves there in one piece.
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as partial:
            manifest = {"recipe": dict(recipe), **write(Path(partial))}
            (Path(partial) / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")
            for name, file in manifest["files"].items():
                if (folder / name).exists() and sha256_of(folder / name) != file["sha256"]:
                    raise UserError(f"{folder / name} exists and is another file: move it, or choose another --output")
            for name in (*manifest["files"], MANIFEST):
                (folder / name).parent.mkdir(exist_ok=True)
                os.replace(Path(partial) / name, folder / name)
        return manifest
    except UserError:
        if made:
            folder.rmdir()
        raise
    except OSError as error:
        raise UserError(f"--output={folder}: cannot be written ({error})") from error


def _check(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any]:
    try:
        manifest = parse((folder / MANIFEST).read_text("utf-8"))
        made_from, sums = manifest["recipe"], {name: file["sha256"] for name, file in manifest["files"].items()}
        other = [key for key in {**recipe, **made_from} if made_from.get(key) != recipe.get(key)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / MANIFEST} is not from here: choose another --output") from error
    if other:
        raise UserError(f"{folder} was made with another {', '.join(other)}: choose another --output, or delete it")
    for name, sha256 in sums.items():
        if not (folder / name).exists() or sha256_of(folder / name) != sha256:
            raise UserError(f"{folder / name} is missing or was changed since it was made: delete {folder}")
    return manifest
