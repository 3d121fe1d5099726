"""The tools as the model sees them, and the check of the arguments that it gives them."""

import re
from collections.abc import Mapping
from typing import Any

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.messages import ToolSpec
from jaxsearchrl.search.contract import MAX_PATTERN_CHARS
from jaxsearchrl.text import well_formed

SEARCHES = ("bm25_search", "fan_out_search", "grep_corpus")
"""The tools whose answers show ids."""


class ArgumentsError(ValueError):
    """Arguments that a tool cannot take; the message, written for the model, names the fault and the right form."""


def tool_specs(options: CuratedConfig) -> dict[str, ToolSpec]:
    """The tools by name, with the full schemas that arguments are checked against."""
    k = {
        "type": "integer",
        "minimum": 1,
        "maximum": options.search_max_k,
        "description": f"How many results at most (default {options.search_default_k}).",
    }
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    fan_out = _tool(
        "fan_out_search",
        "Search by several queries at once; one list, the best results of each query first.",
        {
            "queries": {
                **texts,
                "maxItems": options.fan_out_queries,
                "description": f"Keywords of each search, at most {options.fan_out_queries} searches.",
            },
            "k": {**k, "description": f"How many results of each search (default {options.search_default_k})."},
        },
        ["queries"],
    )
    return {
        spec.name: spec
        for spec in (
            _tool(
                "bm25_search",
                "Search all documents by keywords, ranked by BM25.",
                {"query": {"type": "string", "description": "Keywords; a few telling ones work best."}, "k": k},
                ["query"],
            ),
            *([fan_out] if options.fan_out_queries else []),
            _tool(
                "grep_corpus",
                "Find documents whose title or text matches a regular expression, in corpus order.",
                {
                    "pattern": {
                        "type": "string",
                        "maxLength": MAX_PATTERN_CHARS,
                        "description": "RE2 syntax: no look-around, no back-references.",
                    },
                    "case_sensitive": {"type": "boolean", "description": "Whether case must match (default false)."},
                    "k": k,
                },
                ["pattern"],
            ),
            _tool(
                "read_document",
                "Read the text of a document that a search has shown.",
                {"document_id": {"type": "string", "description": "An id from a search result."}},
                ["document_id"],
            ),
            _tool(
                "curate",
                f"Add documents to your curated set, which is your answer (at most {options.max_curated}).",
                {"document_ids": {**texts, "description": "Ids from search results."}},
                ["document_ids"],
            ),
            _tool(
                "drop_curated",
                "Take documents out of your curated set.",
                {"document_ids": {**texts, "description": "Ids that are in the set."}},
                ["document_ids"],
            ),
            _tool("finish", "End the search and hand over the curated set.", {}, []),
        )
    }


_TERSE = {
    "bm25_search": "search by keywords",
    "fan_out_search": "several searches",
    "grep_corpus": "search by regex",
    "read_document": "read one result",
    "curate": "keep results",
    "drop_curated": "undo curate",
    "finish": "end",
}


def terse(spec: ToolSpec) -> ToolSpec:
    """The tool in few tokens, for small models: a few words, and the required arguments alone, undescribed."""
    required = spec.parameters["required"]
    properties = {
        name: {key: schema[key] for key in ("type", "items") if key in schema}
        for name, schema in spec.parameters["properties"].items()
        if name in required
    }
    return ToolSpec(spec.name, _TERSE[spec.name], {**spec.parameters, "properties": properties})


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the tool takes them; optional ones that are absent or null are left out.

    Forgiving where the meaning is plain: whole numbers and truth values may come as strings, one id may stand for a
    list of one, a k above the maximum becomes the maximum. Raises ArgumentsError for everything else.
    """
    properties = spec.parameters["properties"]
    checked: dict[str, Any] = {}
    try:
        for name in arguments:
            if name not in properties:
                raise ArgumentsError(f"unknown argument {name[:60]!r}")
        for name, schema in properties.items():
            if arguments.get(name) is not None:
                checked[name] = _READERS[schema["type"]](name, arguments[name], schema)
            elif name in spec.parameters["required"]:
                raise ArgumentsError(f"argument {name!r} is missing")
    except ArgumentsError as error:
        raise ArgumentsError(f"{error}; use {usage(spec)}") from None
    return checked


def usage(spec: ToolSpec) -> str:
    """How a tool is called, e.g. `bm25_search(query: string, k?: integer)`."""
    required = spec.parameters["required"]
    words = {"array": "list of strings"}
    arguments = (
        f"{name}{'' if name in required else '?'}: {words.get(schema['type'], schema['type'])}"
        for name, schema in spec.parameters["properties"].items()
    )
    return f"{spec.name}({', '.join(arguments)})"


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": required})


def _read_string(name: str, value: Any, schema: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise ArgumentsError(f"{name!r} must be a string, not {_kind(value)}")
    if not value.strip():
        raise ArgumentsError(f"{name!r} is empty")
    if len(value) > schema.get("maxLength", len(value)):
        raise ArgumentsError(f"{name!r} has {len(value)} characters, at most {schema['maxLength']} are allowed")
    return well_formed(value)


def _read_integer(name: str, value: Any, schema: Mapping[str, Any]) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentsError(f"{name!r} must be a whole number, not {_kind(value)}")
    if value < schema["minimum"]:
        raise ArgumentsError(f"{name!r} must be at least {schema['minimum']}")
    return min(value, schema["maximum"])


def _read_boolean(name: str, value: Any, schema: Mapping[str, Any]) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ArgumentsError(f"{name!r} must be true or false, not {_kind(value)}")
    return value


def _read_strings(name: str, value: Any, schema: Mapping[str, Any]) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise ArgumentsError(f"{name!r} must be a list of strings, not {_kind(value)}")
    if not values:
        raise ArgumentsError(f"{name!r} is an empty list")
    if len(values) > schema.get("maxItems", len(values)):
        raise ArgumentsError(f"{name!r} has {len(values)} items, at most {schema['maxItems']} are allowed")
    return list(dict.fromkeys(map(well_formed, values)))


def _kind(value: Any) -> str:
    """A JSON value's type in words, since its content may be long."""
    if isinstance(value, list):
        return f"a list with {_kind(next((item for item in value if not isinstance(item, str)), ''))}"
    names = {bool: "true or false", int: "a number", float: "a fractional number", str: "a string", dict: "an object"}
    return names.get(type(value), "null")


_READERS = {"string": _read_string, "integer": _read_integer, "boolean": _read_boolean, "array": _read_strings}
