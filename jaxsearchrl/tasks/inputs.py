"""What a configuration's task section reads: its task files and its prompt. Nothing heavy is imported."""

from collections.abc import Sequence

from jaxsearchrl.config import CuratedConfig, GSM8KConfig, SearchR1Config, SearchToolsConfig, TaskConfig
from jaxsearchrl.tasks.curated import prompts as curated
from jaxsearchrl.tasks.curated.data import load_tasks
from jaxsearchrl.tasks.family import Task
from jaxsearchrl.tasks.gsm8k import prompts as gsm8k
from jaxsearchrl.tasks.questions import load_questions
from jaxsearchrl.tasks.search_r1 import prompts as search_r1
from jaxsearchrl.tasks.search_tools import prompts as search_tools


def read_tasks(options: TaskConfig, path: str) -> Sequence[Task]:
    """The tasks of a file of the family. Raises UserError naming file and line."""
    return load_tasks(path) if isinstance(options, CuratedConfig) else load_questions(path)


def check_prompt(options: TaskConfig) -> None:
    """Raises ConfigError for a prompt file that cannot be used."""
    match options:
        case CuratedConfig():
            curated.system_prompt(options)
        case SearchR1Config():
            search_r1.template(options)
        case SearchToolsConfig():
            search_tools.system_prompt(options)
        case GSM8KConfig():
            gsm8k.template(options)
