"""What several families' config.json say of attention."""

from collections.abc import Mapping
from typing import Any

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.config_values import layer_kinds


def only_full_attention(config: Mapping[str, Any], where: str) -> None:
    """Raises ConfigError for a config that asks for a sliding window, which these families' models do not use."""
    if config.get("use_sliding_window"):
        raise ConfigError(f"{where}: use_sliding_window is true, but only full attention is supported")
    if kinds := [kind for kind in layer_kinds(config, where) if kind != "full_attention"]:
        raise ConfigError(f"{where}: layer_types has {kinds[0]!r}, but only full_attention is supported")
