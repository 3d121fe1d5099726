"""From a configuration's retriever section to the retriever that it names. Keys come from the environment."""

import os
import re
from urllib.parse import urlsplit

from jaxsearchrl.config import RetrieverConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.search.remote.cache import ResultCache
from jaxsearchrl.search.remote.elasticsearch import KEY_VARIABLE, ElasticsearchEngine
from jaxsearchrl.search.remote.http import Http
from jaxsearchrl.search.remote.retriever import Engine, RemoteRetriever
from jaxsearchrl.search.remote.search_r1 import TOKEN_VARIABLE, SearchR1Engine
from jaxsearchrl.search.remote.wikipedia import WikipediaEngine
from jaxsearchrl.search.remote.zhihu import KEYS_VARIABLE, ZhihuEngine


def open_remote(options: RetrieverConfig, counters: SearchCounters) -> RemoteRetriever:
    """The retriever, once it has answered a search. Raises UserError, for one that does not, too.

    Its fingerprint leaves out the host: a server may come back elsewhere while a run waits.
    """
    engine = _engine(options, Http(options.timeout, options.tries, counters))
    fields = (options.title_field, options.text_field, options.id_field)
    cache = None
    if options.cache_file:
        cache = ResultCache(options.cache_file, (options.kind, options.url, *fields))
    fingerprint = " ".join((options.kind, urlsplit(options.url).path, *fields))
    retriever = RemoteRetriever(engine, fingerprint, counters, cache)
    retriever.check()
    return retriever


def _engine(options: RetrieverConfig, http: Http) -> Engine:
    match options.kind:
        case "search_r1":
            return SearchR1Engine(http, options.url, secret(TOKEN_VARIABLE))
        case "elasticsearch":
            return ElasticsearchEngine(
                http,
                options.url,
                title_field=options.title_field,
                text_field=options.text_field,
                id_field=options.id_field,
                key=secret(KEY_VARIABLE),
            )
        case "zhihu":
            given = re.split(r"[\s,]+", os.environ.get(KEYS_VARIABLE, ""))
            keys = [_checked(key, KEYS_VARIABLE) for key in given if key]
            if not keys:
                raise UserError(f"task.retriever.kind = 'zhihu' needs keys in the environment variable {KEYS_VARIABLE}")
            return ZhihuEngine(http, options.url, keys)
        case "wikipedia":
            return WikipediaEngine(http, options.url)
        case "local":
            raise AssertionError("the local index is not elsewhere")


def secret(variable: str) -> str:
    """What an environment variable holds, "" without it; see `_checked`."""
    return _checked(os.environ.get(variable, "").strip(), variable)


def _checked(secret: str, variable: str) -> str:
    """Raises UserError for what no header can carry; the message does not tell it."""
    if not (secret.isascii() and secret.isprintable()):
        raise UserError(f"the environment variable {variable} has a character that is no printable ASCII")
    return secret
