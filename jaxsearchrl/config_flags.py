"""From the command line to a `Config`: the file named by `--config`, then `--config.section.key=value` in order."""

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

from absl import app, flags, logging

from jaxsearchrl.config import Config
from jaxsearchrl.config_tree import leaf_types, parse_value, section_types, type_errors, unknown_key, with_values
from jaxsearchrl.errors import ConfigError, InfrastructureError, StoppedByAlarm, UserError

Override = tuple[str, str]  # dotted key, text of the value
STOPPED_BY_ALARM = 3  # the exit status

_OVERRIDE = re.compile(r"--?config\.([^=]*)(?:=(.*))?", re.DOTALL)


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[Override]]:
    """Takes `--config.key=value` and `--config.key value` out of the arguments; the rest is for absl.

    Raises ConfigError for an override without a value.
    """
    rest: list[str] = []
    overrides: list[Override] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif match := _OVERRIDE.fullmatch(word):
            key, text = match.groups()
            if text is None:
                text = next(words, "--")
                if text.startswith("--"):
                    raise ConfigError(f"--config.{key} lacks its value; write --config.{key}=value")
            overrides.append((key, text))
        else:
            rest.append(word)
    return rest, overrides


def parse_flags(argv: Sequence[str], overrides: list[Override]) -> list[str]:
    """absl's parser for all but the overrides, which are added to `overrides`. Raises UserError for a bad flag."""
    rest, found = split_overrides(argv)
    overrides += found
    try:
        _, *positional = flags.FLAGS(rest)
    except flags.Error as error:
        raise UserError(f"{error} (--help lists the flags)") from None
    if positional:
        raise UserError(
            f"unexpected argument {positional[0]!r}; write --name=value, a setting as --config.section.key=value"
        )
    return rest[:1]


def run_app(main: Callable[[Sequence[Override]], None]) -> None:
    """Runs a program on the command line's overrides.

    A fault of user or infrastructure ends it with status 2, an alarm that shall end a run with STOPPED_BY_ALARM.
    """
    overrides: list[Override] = []
    logging.set_verbosity(logging.WARNING)  # Orbax tells every detail; --verbosity=0 shows it
    try:
        app.run(lambda _: main(overrides), flags_parser=lambda words: parse_flags(words, overrides))
    except (UserError, InfrastructureError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except StoppedByAlarm as stop:
        print(f"stopped: {stop}", file=sys.stderr)
        sys.exit(STOPPED_BY_ALARM)


def load_config(path: str, overrides: Sequence[Override] = ()) -> Config:
    """The configuration of a file (`get_config() -> Config`) with overrides applied; named after its file if nameless.

    Only overrides are checked here; `validate` checks the whole. Raises ConfigError naming the file, or the key with
    the nearest valid one.
    """
    config = _run_config_file(Path(path))
    types = leaf_types(config)
    for key, text in overrides:
        if key not in types:
            raise ConfigError("\n  ".join([_unknown(config, key), *type_errors(config)]))
        if key == "task.name" and text != config.task.name:
            raise ConfigError(f"{key}: the config file chooses the family: task={_tasks_with('name')} there")
        config = with_values(config, {key: parse_value(key, types[key], text)})
    return config if config.name else with_values(config, {"name": Path(path).stem})


def _unknown(config: Config, key: str) -> str:
    section, _, name = key.partition(".")
    if section == "task" and (owners := _tasks_with(name)):
        return f"{key} is a key of {owners}, but this config's task is a {type(config.task).__name__}"
    return unknown_key(key, leaf_types(config))


def _tasks_with(name: str) -> str:
    """The task families whose settings have a key of that name."""
    kinds = section_types(get_type_hints(Config)["task"])
    return " or ".join(kind.__name__ for kind in kinds if name in leaf_types(kind()))


def _run_config_file(path: Path) -> Config:
    if not path.is_file():
        raise ConfigError(f"--config={path}: no such file (looked in {Path.cwd()})")
    names: dict[str, object] = {"__file__": str(path), "__name__": path.stem}
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), names)
        get_config = names.get("get_config")
        if not callable(get_config):
            raise ConfigError(f"{path}: defines no function get_config() -> Config")
        config = get_config()
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{path}{_line_of(error, path)}: {type(error).__name__}: {error}{_field_hint(error)}"
        ) from error
    if not isinstance(config, Config):
        raise ConfigError(f"{path}: get_config() returned a {type(config).__name__}, not a jaxsearchrl.config.Config")
    return config


def _line_of(error: Exception, path: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return f":{lines[-1]}" if lines else ""


def _field_hint(error: Exception) -> str:
    """A misspelt field is a TypeError of its dataclass's constructor; the nearest valid key helps more."""
    match = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if not match:
        return ""
    sections = {kind: name for name, hint in get_type_hints(Config).items() for kind in section_types(hint)}
    for kind, name in sections.items():
        if kind.__name__ == match[1]:
            return f" ({unknown_key(f'{name}.{match[2]}', leaf_types(replace(Config(), **{name: kind()})))})"
    return f" ({unknown_key(match[2], leaf_types(Config()))})"
