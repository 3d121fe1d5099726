"""Rotary positions in a config.json, read and written."""

from collections.abc import Mapping
from typing import Any, get_args

from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Rope, RopeKind, yarn_attention_factor
from jaxsearchrl.models.config_values import integer, number


def rope_from_hf(config: Mapping[str, Any], where: str, *, partial: bool = False, default_share: float = 1.0) -> Rope:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    partial: whether the family can leave dimensions unrotated. Raises ConfigError naming a key that we do not compute.
    """
    max_positions = integer(config, "max_position_embeddings", where)
    share_outside = number(config, "partial_rotary_factor", where, default_share, above=0)
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = config.get(key) or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {key} is {given!r}, but must be an object")
    outside = number(config, "rope_theta", where, 10000.0, above=1)
    where = f"{where}: {key}"
    share = number(given, "partial_rotary_factor", where, share_outside, above=0)
    if share > 1 or (share != 1 and not partial):
        supported = "must be at most 1" if partial else "only 1.0 is supported"
        raise ConfigError(f"{where}: partial_rotary_factor is {share:g}, but {supported}")
    theta = number(given, "rope_theta", where, outside, above=1)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in get_args(RopeKind):
        raise ConfigError(f"{where}: rope_type {kind!r} is not supported; known: {', '.join(get_args(RopeKind))}")
    read = {"rope_theta", "rope_type", "type", "original_max_position_embeddings", "partial_rotary_factor"}
    if partial:  # how Qwen splits dimensions among the axes of an image; for text all axes are the position
        read |= {"mrope_section", "mrope_interleaved"}
    rope: dict[str, Any] = {}
    if kind != "default":
        read.add("factor")
        rope["factor"] = number(given, "factor", where)
        if rope["factor"] < 1:
            raise ConfigError(f"{where}: factor is {rope['factor']}, but must be at least 1")
        original = config.get("original_max_position_embeddings")  # Phi writes it here; transformers prefers it
        given = given if original is None else {**given, "original_max_position_embeddings": original}
        rope["original_positions"] = integer(given, "original_max_position_embeddings", where, max_positions)
    if kind == "llama3":
        read |= {"low_freq_factor", "high_freq_factor"}
        rope["low_freq_factor"] = low = number(given, "low_freq_factor", where)
        rope["high_freq_factor"] = high = number(given, "high_freq_factor", where)
        if high <= low:
            raise ConfigError(f"{where}: high_freq_factor {high} must be above low_freq_factor {low}")
    if kind == "yarn":
        read |= {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
        rope["beta_fast"] = number(given, "beta_fast", where, 32.0)
        rope["beta_slow"] = number(given, "beta_slow", where, 1.0)
        rope["truncate"] = given.get("truncate") is not False
        scales = number(given, "mscale", where, 0.0), number(given, "mscale_all_dim", where, 0.0)
        factor = yarn_attention_factor(rope["factor"])
        if all(scales):
            factor = yarn_attention_factor(rope["factor"], scales[0]) / yarn_attention_factor(rope["factor"], scales[1])
        rope["attention_factor"] = number(given, "attention_factor", where, factor)
    unknown = {k for k, v in given.items() if v is not None} - read
    if unknown:
        raise ConfigError(f"{where}: {sorted(unknown)[0]} is not supported with rope_type {kind!r}")
    return Rope(theta=theta, kind=kind, share=share, **rope)


def rope_to_hf(rope: Rope) -> dict[str, Any]:
    """The `rope_parameters` of a config.json."""
    parameters: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind != "default":
        parameters["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = rope.original_positions
    if rope.kind == "llama3":
        parameters |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        parameters |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        parameters["attention_factor"] = rope.attention_factor
    return parameters
