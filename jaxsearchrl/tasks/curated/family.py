"""The curated-set family: find documents for every fact of a question, hand over the set."""

from collections.abc import Callable, Mapping, Sequence

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.search.index import LocalIndex
from jaxsearchrl.tasks.curated.baselines import QuestionAgent, best_top_k
from jaxsearchrl.tasks.curated.data import Task, check_gold
from jaxsearchrl.tasks.curated.environment import CuratedEnvironment
from jaxsearchrl.tasks.curated.prompts import system_prompt
from jaxsearchrl.tasks.curated.rule import RuleAgent
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.tasks.family import Baseline


class CuratedFamily:
    """Implements `jaxsearchrl.tasks.family.Family`. It searches in `index`."""

    measures = ("f_beta", "precision", "recall", "f1", "candidate_recall")

    def __init__(self, options: CuratedConfig, index: LocalIndex):
        self._options, self.index = options, index

    @property
    def fingerprints(self) -> Mapping[str, str]:
        """The corpus, and the words of the prompt."""
        return {"corpus": self.index.fingerprint, "prompt": system_prompt(self._options)}

    def check(self, tasks: Sequence[Task], path: str) -> None:
        """Raises UserError for gold that the corpus lacks."""
        check_gold(tasks, self.index, path)

    def environment(self, task: Task, count_tokens: Callable[[str], int], step: int) -> CuratedEnvironment:
        """A new episode; the same at every step."""
        return CuratedEnvironment(task, self.index, self.index, self._options, count_tokens)

    def expert(self, task: Task) -> RuleAgent:
        """A rule that searches each line of the query; it never sees the gold."""
        return RuleAgent()

    def asker(self, train: Sequence[Task]) -> QuestionAgent:
        """Curates what one search for the question as it is shows, with k chosen on training tasks."""
        k, _ = best_top_k(train, (), self.index, self._options)
        return QuestionAgent(min(k, self._options.search_max_k))

    def imitable(self, score: Score) -> bool:
        """Every episode is."""
        return True

    def baseline(self, train: Sequence[Task], evaluation: Sequence[Task]) -> Baseline:
        """Curating the best hits of the raw question."""
        k, values = best_top_k(train, evaluation, self.index, self._options)
        return Baseline(f"Curating the top {k} of the raw question (k chosen on training tasks)", values)
