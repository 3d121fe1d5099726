"""Task files of every family: JSONL, one task a line, each with an id of its own, and no key that nobody reads."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from jaxsearchrl.errors import UserError
from jaxsearchrl.strict_json import read_objects


class HasId(Protocol):
    """What every task has."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=HasId)


def read_tasks(path: str | Path, make: Callable[[Any, str], T], noun: str) -> list[T]:
    """The tasks of a JSONL file, in file order; blank lines are allowed.

    make: turns the object of a line, and "file:line" for messages, into a task.
    noun: what such a task is called.
    Raises UserError naming file and line for what is unreadable, for a repeated id, for a file without tasks, and
    whatever `make` raises.
    """
    tasks: dict[str, T] = {}
    try:
        for number, row in read_objects(path):
            where = f"{path}:{number}"
            task = make(row, where)
            if task.id in tasks:
                raise UserError(f'{where}: id "{task.id}" was used before; every {noun} needs its own id')
            tasks[task.id] = task
    except OSError as error:
        raise UserError(f"cannot read the {noun}s of {path}: {error}") from error
    if not tasks:
        raise UserError(f"{path} holds no {noun}")
    return list(tasks.values())


def check_keys(row: Any, known: set[str], where: str) -> None:
    """Raises UserError for what is no object, and for a key that is not known, naming the nearest."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(row).__name__}")
    for key in row.keys() - known:
        near = difflib.get_close_matches(key, known, 1)
        hint = f'did you mean "{near[0]}"?' if near else f"known keys: {', '.join(sorted(known))}"
        raise UserError(f'{where}: unknown key "{key}"; {hint}')


def get(row: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """The value of a key that must be there. Raises UserError when it is missing or of another type."""
    if key not in row:
        raise UserError(f'{where}: key "{key}" is missing; found {", ".join(row) or "no keys"}')
    if not isinstance(row[key], kind):
        raise UserError(f'{where}: "{key}" must be a {kind.__name__}, found {type(row[key]).__name__}')
    return row[key]


def get_text(row: Mapping[str, Any], key: str, where: str) -> str:
    """The text of a key that must be there. Raises UserError also when it is blank."""
    text = get(row, key, str, where)
    if not text.strip():
        raise UserError(f'{where}: "{key}" is empty')
    return text
