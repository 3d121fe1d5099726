"""From a configuration's task section to the family that it names."""

from jaxsearchrl.config import CuratedConfig, GSM8KConfig, SearchR1Config, SearchToolsConfig, TaskConfig
from jaxsearchrl.search.contract import Retriever
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.search.remote.open import open_remote
from jaxsearchrl.tasks.curated.family import CuratedFamily
from jaxsearchrl.tasks.family import Family
from jaxsearchrl.tasks.gsm8k.family import GSM8KFamily
from jaxsearchrl.tasks.search_r1.family import SearchR1Family
from jaxsearchrl.tasks.search_tools.family import SearchToolsFamily


def open_family(options: TaskConfig, counters: SearchCounters) -> Family:
    """The family at work, its index opened or built, or the engine that it searches by asked once.

    counters: what counts the searches of an engine elsewhere. Raises UserError naming the file or address at fault.
    """
    match options:
        case CuratedConfig():
            index = open_or_build(options.corpus, options.index_dir, snippet_chars=options.snippet_chars)
            return CuratedFamily(options, index)
        case SearchR1Config():
            return SearchR1Family(options, _retriever(options, counters))
        case SearchToolsConfig():
            return SearchToolsFamily(options, _retriever(options, counters))
        case GSM8KConfig():
            return GSM8KFamily(options)


def _retriever(options: SearchR1Config | SearchToolsConfig, counters: SearchCounters) -> Retriever:
    if options.retriever.kind == "local":
        return open_or_build(options.corpus, options.index_dir, snippet_chars=0)  # these show whole documents
    return open_remote(options.retriever, counters)


def measures_of(options: TaskConfig) -> tuple[str, ...]:
    """The measures of the family that a configuration names, without opening its corpus."""
    match options:
        case CuratedConfig():
            return CuratedFamily.measures
        case SearchR1Config():
            return SearchR1Family.measures
        case SearchToolsConfig():
            return SearchToolsFamily.measures
        case GSM8KConfig():
            return GSM8KFamily.measures
