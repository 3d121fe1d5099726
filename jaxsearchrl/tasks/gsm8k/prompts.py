"""What the policy is told, in our own words; a file of the user's can take their place."""

from functools import cache
from importlib import resources

from jaxsearchrl.config import GSM8KConfig
from jaxsearchrl.tasks.prompt_files import fill, read_prompt


@cache
def template(options: GSM8KConfig) -> str:
    """`prompt_file` of the options, else the package's text. Raises ConfigError for a file without {question}."""
    own = resources.files("jaxsearchrl.tasks.gsm8k").joinpath("prompt.txt")
    return read_prompt(options.prompt_file, own, ("question",))


def question_prompt(options: GSM8KConfig, question: str) -> str:
    """The message of an episode."""
    return fill(template(options), {"question": question})
