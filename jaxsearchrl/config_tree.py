"""A configuration as a flat table of dotted keys: types, values, replacing, JSON and differences.

Works on any tree of frozen dataclasses whose leaves are int, float, bool, str, Literal or tuple[..., ...]; what the
keys mean is the business of `config.py`. A section may be one of several dataclasses (`A | B`), which tell themselves
apart by a leaf `name` of their own; the keys of a tree are those of the one that it holds.
"""

import dataclasses
import difflib
import json
import sys
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.strict_json import parse

Tree = TypeVar("Tree")


def leaf_types(config: Any) -> dict[str, Any]:
    """Dotted key to type, in order of declaration."""
    leaves: dict[str, Any] = {}
    for name, hint in get_type_hints(type(config)).items():
        if section_types(hint):
            leaves |= {f"{name}.{key}": leaf for key, leaf in leaf_types(getattr(config, name)).items()}
        else:
            leaves[name] = hint
    return leaves


def section_types(hint: Any) -> tuple[type, ...]:
    """The dataclasses that a field of this type may hold; none for a leaf."""
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(member for member in members if dataclasses.is_dataclass(member) and isinstance(member, type))


def leaf_values(config: Any) -> dict[str, Any]:
    """Dotted key to value, in order of declaration."""
    leaves: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            leaves |= {f"{field.name}.{key}": leaf for key, leaf in leaf_values(value).items()}
        else:
            leaves[field.name] = value
    return leaves


def with_values(config: Tree, changes: Mapping[str, Any]) -> Tree:
    """A copy of `config` with some keys replaced. Raises ConfigError for an unknown key."""
    valid = leaf_types(config)
    for key, value in changes.items():
        if key not in valid:
            raise ConfigError(unknown_key(key, valid))
        config = _with_value(config, key.split("."), value)
    return config


def _with_value(node: Any, path: list[str], value: Any) -> Any:
    name, rest = path[0], path[1:]
    return dataclasses.replace(node, **{name: _with_value(getattr(node, name), rest, value) if rest else value})


def unknown_key(key: str, valid: Mapping[str, Any]) -> str:
    """Says what to write instead of `key`: a section's keys, or the nearest key of the whole tree."""
    inside = [name for name in valid if name.startswith(f"{key}.")]
    if inside:
        return f"{key} is a section, not a value; its keys: {', '.join(inside)}"
    message = f"unknown key {key}; the nearest valid key is {difflib.get_close_matches(key, valid, n=1, cutoff=0)[0]}"
    section = key.rpartition(".")[0]
    siblings = [name.rpartition(".")[2] for name in valid if section and name.rpartition(".")[0] == section]
    return f"{message} (keys of {section}: {', '.join(siblings)})" if siblings else message


def describe_type(wanted: Any) -> str:
    """A type in words, for error messages."""
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(wanted))
    if get_origin(wanted) is tuple:
        return f"a list of values, each {describe_type(get_args(wanted)[0])}"
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}[wanted]


def parse_value(key: str, wanted: Any, text: str) -> Any:
    """The value that `text` of the command line means; lists are comma separated. Raises ConfigError."""
    try:
        value = _parse(wanted, text)
    except (KeyError, ValueError):
        value = None
    if not fits(wanted, value):
        raise ConfigError(f"{key} = {text!r}: {describe_type(wanted)} is wanted")
    return value


def _parse(wanted: Any, text: str) -> Any:
    if get_origin(wanted) is Literal:
        return {str(choice): choice for choice in get_args(wanted)}[text]
    if get_origin(wanted) is tuple:
        return tuple(_parse(get_args(wanted)[0], item.strip()) for item in text.split(",")) if text else ()
    if wanted is bool:
        return {"true": True, "false": False}[text.lower()]
    return wanted(text)


def fits(wanted: Any, value: Any) -> bool:
    """Whether a value has the type; a whole number is a fine float, a bool is no number, NaN and infinity are none."""
    if get_origin(wanted) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(wanted))
    if get_origin(wanted) is tuple:
        return isinstance(value, tuple) and all(fits(get_args(wanted)[0], item) for item in value)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def type_errors(config: Any, prefix: str = "") -> list[str]:
    """One message for each key whose value has the wrong type, however the tree was built."""
    errors: list[str] = []
    for name, wanted in get_type_hints(type(config)).items():
        key, value = f"{prefix}{name}", getattr(config, name)
        if sections := section_types(wanted):
            if isinstance(value, sections):
                errors += type_errors(value, f"{key}.")
            else:
                choice = " or ".join(f"{section.__name__}(...)" for section in sections)
                errors.append(f"{key} = {value!r}: {choice} is wanted")
        elif not fits(wanted, value):
            errors.append(
                f"{key} = {value!r} ({type(value).__name__}): {describe_type(wanted)} is wanted{_hint(wanted, value)}"
            )
    return errors


def _hint(wanted: Any, value: Any) -> str:
    if get_origin(wanted) is tuple and isinstance(value, str | list):
        return "; write a tuple: ('a', 'b')"
    if wanted in (int, float, bool) and isinstance(value, str):
        return "; write it without quotes"
    return ""


def to_json(config: Any) -> str:
    """The whole tree as JSON text, one line per key, a newline at the end."""
    return json.dumps(dataclasses.asdict(config), indent=2, allow_nan=False) + "\n"


def from_json(tree: type[Tree], text: str, where: str) -> Tree:
    """The tree that `to_json` wrote. A key that the text lacks (a run older than the key) takes its default.

    Raises ConfigError naming `where` for text that is not JSON, unknown keys and wrong types.
    """
    try:
        data = parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: an object of sections is wanted")
    try:
        config = tree(**_named_sections(tree, data))
        leaves = _leaves_of_json(data, leaf_types(config))
        config = with_values(config, {key: _tuples(value) for key, value in leaves.items()})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if errors := type_errors(config):
        raise ConfigError("\n  ".join([f"{where}:", *errors]))
    return config


def _named_sections(tree: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Of each section that may be one of several dataclasses: the one whose name the data has, with its defaults."""
    sections: dict[str, Any] = {}
    for name, hint in get_type_hints(tree).items():
        choices = {choice().name: choice for choice in section_types(hint)} if isinstance(hint, UnionType) else {}
        wanted = data[name].get("name") if isinstance(data.get(name), dict) else None
        if choices and wanted is not None:
            if wanted not in [*choices]:  # a list, since JSON may hold what cannot be hashed
                raise ConfigError(f"{name}.name = {wanted!r}: one of {', '.join(map(repr, choices))} is wanted")
            sections[name] = choices[wanted]()
    return sections


def _leaves_of_json(data: dict[str, Any], valid: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in valid:
            leaves |= _leaves_of_json(value, valid, f"{key}.")
        else:
            leaves[key] = value
    return leaves


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def diff(a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """(key, value in a, value in b) of every key that both have and in which they differ."""
    other = leaf_values(b)
    return [(key, value, other[key]) for key, value in leaf_values(a).items() if key in other and value != other[key]]
