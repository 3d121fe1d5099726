"""The rules of Search-R1 by tool calls, in our own words; a file of the user's can take their place."""

from functools import cache
from importlib import resources

from jaxsearchrl.config import SearchToolsConfig
from jaxsearchrl.tasks.prompt_files import fill, read_prompt


@cache
def system_prompt(options: SearchToolsConfig) -> str:
    """`prompt_file` of the options, else the package's text for how the task is played.

    `{max_searches}` is replaced. Raises ConfigError for a file that cannot be read or has another word in braces.
    """
    own = resources.files("jaxsearchrl.tasks.search_tools").joinpath(f"prompt_{options.play}.txt")
    limits = {"max_searches": options.max_searches}
    return fill(read_prompt(options.prompt_file, own, tuple(limits), required=False), limits)
