"""What each task says to a model, over real tokenizers: its ids are those of the model's own chat template."""

import pytest

from jaxsearchrl.chat.chatml import ChatML
from jaxsearchrl.chat.search_r1 import SearchR1Tags
from jaxsearchrl.config import GSM8KConfig, SearchR1Config, SearchToolsConfig
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.tasks.gsm8k.environment import GSM8KEnvironment
from jaxsearchrl.tasks.search_r1.environment import SearchR1Environment
from jaxsearchrl.tasks.search_tools.environment import SearchToolsEnvironment


@pytest.fixture(scope="module", params=["smollm2", "qwen2_5", "qwen3"])
def tokenizer(request):
    return request.getfixturevalue(f"{request.param}_tokenizer")


def template_ids(tokenizer, messages, **settings):
    return list(tokenizer.apply_chat_template(messages, return_dict=False, **settings))


def as_dicts(messages):
    return [{"role": message.role, "content": message.content} for message in messages]


@pytest.mark.parametrize("play", ["agent", "direct", "rag"])
def test_the_tags_prompt(tokenizer, towns, question, play):
    environment = SearchR1Environment(question, towns, SearchR1Config(play=play), len, 0.0)
    messages = environment.reset()
    wanted = template_ids(tokenizer, as_dicts(messages), add_generation_prompt=True)
    assert SearchR1Tags(tokenizer).prompt_ids(messages, environment.tools) == wanted


def test_the_prompt_of_a_sum(tokenizer, question):
    environment = GSM8KEnvironment(question, GSM8KConfig(), 0.0)
    messages = environment.reset()
    wanted = template_ids(tokenizer, as_dicts(messages), add_generation_prompt=True)
    assert ChatML(tokenizer).prompt_ids(messages, environment.tools) == wanted


@pytest.mark.parametrize("play", ["direct", "rag"])
def test_the_prompt_without_tools(tokenizer, towns, question, play):
    environment = SearchToolsEnvironment(question, towns, SearchToolsConfig(play=play), len)
    messages = environment.reset()
    wanted = template_ids(tokenizer, as_dicts(messages), add_generation_prompt=True)
    assert ChatML(tokenizer).prompt_ids(messages, environment.tools) == wanted


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3", "qwen3_5"])
def test_the_search_tool_and_its_result(request, towns, question, family):
    """SmolLM2's template knows no tools, so this is for those that do."""
    tokenizer = request.getfixturevalue(f"{family}_tokenizer")
    chat = ChatML(tokenizer, calls="xml" if family == "qwen3_5" else "json")
    environment = SearchToolsEnvironment(question, towns, SearchToolsConfig(), chat.count_tokens)
    messages = environment.reset()
    tools = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in environment.tools
    ]
    prompt = chat.prompt_ids(messages, environment.tools)
    assert prompt == template_ids(tokenizer, as_dicts(messages), tools=tools, add_generation_prompt=True)

    arguments = {"query": "Brell"}
    # Qwen3.5's prompt opens the reasoning, which its template writes in any turn
    reasoning = "Hm." if family == "qwen3_5" else ""
    *sampled, _ = chat.turn_ids(AssistantTurn("", reasoning, (ToolCall("search", arguments),)))
    answer, done = environment.step(chat.parse([*sampled, chat.stop_ids[0]], stopped=True, tools=environment.tools))
    assert not done
    spoken = {
        "role": "assistant",
        "content": "",
        "reasoning_content": reasoning,
        "tool_calls": [{"function": {"name": "search", "arguments": arguments}}],
    }
    result = {"role": "tool", "content": answer[0].content}
    whole = template_ids(tokenizer, [*as_dicts(messages), spoken, result], tools=tools, add_generation_prompt=True)
    suffix = chat.observation_ids(answer, stopped=True)
    assert [*prompt, *sampled, chat.stop_ids[0], *suffix] == whole
