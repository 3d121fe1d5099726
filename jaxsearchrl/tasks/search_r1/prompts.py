"""What Search-R1's policy is told, in our own words; a file of the user's can take their place."""

from functools import cache
from importlib import resources

from jaxsearchrl.config import SearchR1Config
from jaxsearchrl.tasks.prompt_files import fill, read_prompt

INVALID = (
    "My last action was not valid. To search I have to write the query between <search> and </search>. To answer I "
    "have to write the answer between <answer> and </answer>. Let me try again."
)
NOTHING_FOUND = "No document was found."


@cache
def template(options: SearchR1Config) -> str:
    """`prompt_file` of the options, else the package's text for how the task is played, with {question} in it.

    Raises ConfigError for a file that cannot be read or lacks a field, or has another word in braces.
    """
    own = resources.files("jaxsearchrl.tasks.search_r1").joinpath(f"prompt_{options.play}.txt")
    fields = ("question", "context") if options.play == "rag" else ("question",)
    return read_prompt(options.prompt_file, own, fields)


def question_prompt(options: SearchR1Config, question: str, context: str = "") -> str:
    """The first message of an episode. context: what was found beforehand, for "rag"."""
    return fill(template(options), {"question": question, "context": context})
