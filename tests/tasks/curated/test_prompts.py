"""The system prompt: which text, what is filled in, and how short the short one is."""

import pytest

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.tasks.curated.prompts import system_prompt


def test_compact_results_come_with_a_short_prompt(count_tokens):
    long, short = system_prompt(CuratedConfig()), system_prompt(CuratedConfig(compact_results=True, max_turns=6))
    assert "You have 6 turns" in short
    assert count_tokens(short) < 100 < count_tokens(long)
    for tool in ("bm25_search", "grep_corpus", "read_document", "urate", "drop_curated", "finish"):
        assert tool in long


def test_terse_tools_and_the_short_prompt_are_small(make_environment, count_tokens):
    environment = make_environment(compact_results=True)
    tools = [f"{tool.name} {list(tool.parameters['properties'])} {tool.description}" for tool in environment.tools]
    assert sum(map(count_tokens, tools)) < 120
    assert sum(len(tool.description) for tool in make_environment().tools) > 200


def test_a_file_takes_the_place_of_the_text(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text('Say {"name": "finish"} within {max_turns} turns; {Odd} é.\n', encoding="utf-8")
    for compact in (False, True):
        options = CuratedConfig(prompt_file=str(path), max_turns=5, compact_results=compact)
        assert system_prompt(options) == 'Say {"name": "finish"} within 5 turns; {Odd} é.'


def test_a_faulty_file_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.prompt_file: cannot read .*absent"):
        system_prompt(CuratedConfig(prompt_file=str(tmp_path / "absent.txt")))
    path = tmp_path / "prompt.txt"
    path.write_text("{max_turn} turns")
    with pytest.raises(ConfigError, match=r"has \{max_turn\}; known are \{max_turns\}, \{max_tool_calls\}"):
        system_prompt(CuratedConfig(prompt_file=str(path)))
