"""Values of a config.json or of a .gguf file's metadata, each checked; a fault is named by its key."""

import math
from collections.abc import Mapping
from typing import Any, get_args

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import LayerKind


def integer(config: Mapping[str, Any], key: str, where: str, default: int | None = None, *, least: int = 1) -> int:
    """A whole number, at least `least`, of a config.json or a .gguf file's metadata; `where` names the file.

    A null counts as absent, as in transformers. Raises ConfigError naming the key.
    """
    value = default if config.get(key) is None else config[key]
    if value is None:
        raise ConfigError(f"{where}: {key} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{where}: {key} is {value!r}, but must be a whole number, at least {least}")
    return value


def number(
    config: Mapping[str, Any], key: str, where: str, default: float | None = None, *, above: float = -math.inf
) -> float:
    """As `integer`, for any finite number above `above`."""
    value = default if config.get(key) is None else config[key]
    if value is None:
        raise ConfigError(f"{where}: {key} is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not above < value < math.inf:
        limit = f" above {above:g}" if above > -math.inf else ""
        raise ConfigError(f"{where}: {key} is {value!r}, but must be a number{limit}")
    return float(value)


def eos_ids(value: Any, where: str) -> tuple[int, ...]:
    """The ids of an eos_token_id, which may be one, several or none."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) for i in ids):
        raise ConfigError(f"{where}: eos_token_id is {value!r}, but must be an id or a list of ids")
    return tuple(dict.fromkeys(ids))


def layer_kinds(config: Mapping[str, Any], where: str, default: tuple[LayerKind, ...] = ()) -> tuple[LayerKind, ...]:
    """The `layer_types` of a config.json. Raises ConfigError for one that is unknown."""
    kinds = config.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or not all(kind in get_args(LayerKind) for kind in kinds):
        raise ConfigError(f"{where}: layer_types is {kinds!r}, but known are {', '.join(get_args(LayerKind))}")
    return tuple(kinds)
