"""The system message: one of the package's own texts, or the user's file, with the episode's limits filled in."""

import re
from functools import cache
from importlib import resources
from pathlib import Path

from jaxsearchrl.config import TaskConfig
from jaxsearchrl.errors import ConfigError


@cache
def system_prompt(options: TaskConfig) -> str:
    """`prompt_file` of the options, else the short text with compact results, else the long one.

    `{max_turns}`, `{max_tool_calls}` and `{max_curated}` are replaced. Raises ConfigError for a file that cannot be
    read or has another lower-case word in braces.
    """
    if options.prompt_file:
        try:
            text = Path(options.prompt_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"task.prompt_file: cannot read {options.prompt_file}: {error}") from error
    else:
        name = "prompt_short.txt" if options.compact_results else "prompt.txt"
        text = resources.files("jaxsearchrl.tasks.curated").joinpath(name).read_text(encoding="utf-8")
    values = {name: getattr(options, name) for name in ("max_turns", "max_tool_calls", "max_curated")}

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            known = ", ".join(f"{{{name}}}" for name in values)
            raise ConfigError(f"task.prompt_file: {options.prompt_file} has {match[0]}; known are {known}")
        return str(values[match[1]])

    return re.sub(r"\{([a-z_]+)\}", value, text).strip()
