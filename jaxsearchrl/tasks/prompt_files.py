"""Prompts as text files with fields in braces, which an episode fills in."""

import re
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

from jaxsearchrl.errors import ConfigError

_FIELD = re.compile(r"\{([a-z_]+)\}")


def read_prompt(path: str, own: Traversable, fields: Sequence[str], *, required: bool = True) -> str:
    """The text of the user's file at `path`, or of `own` (the package's) when that is empty, stripped.

    Raises ConfigError for a file that cannot be read, a lower-case word in braces that is no field, and, if they are
    required, a field that it lacks.
    """
    if not path:
        return own.read_text(encoding="utf-8").strip()
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"task.prompt_file: cannot read {path}: {error}") from error
    known = ", ".join(f"{{{name}}}" for name in fields)
    found = _FIELD.findall(text)
    for name in found:
        if name not in fields:
            raise ConfigError(f"task.prompt_file: {path} has {{{name}}}; known are {known}")
    if required and (missing := [name for name in fields if name not in found]):
        raise ConfigError(f"task.prompt_file: {path} lacks {{{missing[0]}}}; it must have {known}")
    return text


def fill(text: str, values: Mapping[str, object]) -> str:
    """The text with its fields replaced, all at once: what stands in a value is never taken for a field."""
    return _FIELD.sub(lambda match: str(values[match[1]]) if match[1] in values else match[0], text)
