"""What an expert says, written in its chat format and read back, is what it meant: a warm start teaches just that."""

from dataclasses import replace

import pytest

from jaxsearchrl.chat.search_r1 import SearchR1Tags
from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import GSM8KConfig, SearchR1Config, SearchToolsConfig
from jaxsearchrl.dry_run import _write_tokenizer
from jaxsearchrl.messages import Message
from jaxsearchrl.tasks.gsm8k.family import GSM8KFamily
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.tasks.search_r1.family import SearchR1Family
from jaxsearchrl.tasks.search_tools.family import SearchToolsFamily

QUESTION = Question("q", "How many moons has Mars?", ("2", "two"))


@pytest.fixture(scope="module")
def tags(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("tags")
    _write_tokenizer(folder, [str(corpus)], [])
    return SearchR1Tags(load_tokenizer(folder))


@pytest.mark.parametrize("name", ["search_r1", "search_tools", "gsm8k"])
def test_what_an_expert_says_is_read_as_it_was_meant_and_earns_the_full_reward(name, index, chat, tags):
    family, format, full = {
        "search_r1": (SearchR1Family(SearchR1Config(format_weight=0.1), index), tags, 1.1),
        "search_tools": (SearchToolsFamily(SearchToolsConfig(), index), chat, 1.0),
        "gsm8k": (GSM8KFamily(GSM8KConfig(format_weight=0.1)), chat, 1.1),
    }[name]
    environment, expert = family.environment(QUESTION, format.count_tokens, 0), family.expert(QUESTION)
    messages, done = environment.reset(), False
    while not done:
        meant = expert.act(messages)
        read = format.parse(format.turn_ids(meant), stopped=True)
        if format is chat:
            assert read == meant
        else:  # the reasoning stands in the text as well
            assert replace(read, reasoning="") == meant
        observation, done = environment.step(read)
        messages = [*messages, Message("assistant", read.text, turn=read), *observation]
    assert environment.score().reward == pytest.approx(full)
