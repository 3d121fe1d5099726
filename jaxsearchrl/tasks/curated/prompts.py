"""The system message: one of the package's own texts, or the user's file, with the episode's limits filled in."""

from functools import cache
from importlib import resources

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.tasks.prompt_files import fill, read_prompt


@cache
def system_prompt(options: CuratedConfig) -> str:
    """`prompt_file` of the options, else the short text with compact results, else the long one.

    `{max_turns}`, `{max_tool_calls}` and `{max_curated}` are replaced. Raises ConfigError for a file that cannot be
    read or has another lower-case word in braces.
    """
    name = "prompt_short.txt" if options.compact_results else "prompt.txt"
    own = resources.files("jaxsearchrl.tasks.curated").joinpath(name)
    limits = {name: getattr(options, name) for name in ("max_turns", "max_tool_calls", "max_curated")}
    return fill(read_prompt(options.prompt_file, own, tuple(limits), required=False), limits)
