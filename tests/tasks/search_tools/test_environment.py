"""What an episode by tool calls does with all that a policy may write, and what that is worth."""

import json

import pytest

from jaxsearchrl.chat.tool_json import read_turn
from jaxsearchrl.config import SearchToolsConfig
from jaxsearchrl.rollouts.play import play
from jaxsearchrl.tasks.search_tools.environment import NOTHING_FOUND, SearchToolsEnvironment
from jaxsearchrl.tasks.search_tools.family import SearchToolsFamily


def call(query="Brell", name="search", **more):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'query': query, **more}})}</tool_call>"


@pytest.fixture
def make(towns, question):
    def environment(**options):
        made = SearchToolsEnvironment(question, towns, SearchToolsConfig(**options), lambda text: len(text.split()))
        made.reset()
        return made

    return environment


def said(environment, *texts):
    """Plays these turns; returns the last observation's texts."""
    for text in texts:
        messages, done = environment.step(read_turn(text, truncated=False))
    assert done == bool(environment.stop_reason)
    return [message.content for message in messages]


def test_the_rules_name_the_budget_and_the_answer_line(make):
    system, user = make(max_searches=7).reset()
    assert "at most 7 searches" in system.content
    assert "Answer: <short answer>" in system.content
    assert user.content == "What is made in Brell?"
    assert [tool.name for tool in make().tools] == ["search"]


def test_a_search_is_answered_with_documents_cut_to_size(make):
    environment = make(search_k=1, document_chars=30)
    assert said(environment, call()) == ["[1] Title: Brell\n    Content: Brell is a town by the sea. It"]
    assert environment.last_step() == {
        "calls": [{"name": "search", "arguments": {"query": "Brell"}, "ok": True, "outcome": "found"}],
        "encountered": [{"id": "brell", "rank": 1, "call": 0}],
    }
    assert said(environment, call("zzzz")) == [NOTHING_FOUND]
    assert said(environment, "So.\nAnswer: Glass") == []
    score = environment.score()
    assert (score.reward, score.outcome, score.parts["searches"], score.parts["retrieved"]) == (1.0, "right", 2.0, 0.0)


MISBEHAVIOUR = {
    # name: turns, reward, outcome, stop reason; with two searches and three turns at most
    "no call and no answer line": (["Glass."], -0.1, "unanswered", "finish"),
    "silence": ([""], -0.1, "unanswered", "finish"),
    "a wrong answer": (["Answer: rope"], 0.0, "wrong", "finish"),
    "an empty answer": (["Answer:  "], -0.1, "empty", "finish"),
    "two answer lines": (["Answer: glass\nAnswer: glass"], -0.1, "unanswered", "finish"),
    "an answer before any search": (["Answer: the glass"], 1.0, "right", "finish"),
    "an answer that is not on a line of its own": (["The Answer: glass"], -0.1, "unanswered", "finish"),
    "an answer in thinking": (["<think>\nAnswer: glass\n</think>"], -0.1, "unanswered", "finish"),
    "an empty query": ([call(" ")], -0.1, "malformed", "invalid"),
    "a query with a tag": ([call("<b>")], -0.1, "malformed", "invalid"),
    "another tool": ([call(name="read")], -0.1, "malformed", "invalid"),
    "another argument": ([call(k=3)], -0.1, "malformed", "invalid"),
    "two calls": ([call() + call()], -0.1, "malformed", "invalid"),
    "text behind the call": ([call() + " Done."], -0.1, "malformed", "invalid"),
    "a call that stays open": (["<tool_call>{"], -0.1, "malformed", "invalid"),
    "a bad call beside the right answer": (["Answer: glass\n" + call("<")], 1.0, "right", "invalid"),
    "more searches than there may be": ([call(), call(), call()], -0.1, "unanswered", "tool_calls"),
    "the answer that a document wrote": ([call("owl"), "I am done."], -0.1, "unanswered", "finish"),
}


@pytest.mark.parametrize(("turns", "reward", "outcome", "stop"), MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_misbehaviour_is_worth_exactly_what_is_documented(make, turns, reward, outcome, stop):
    environment = make(max_searches=2, max_turns=3)
    said(environment, *turns)
    score = environment.score()
    assert (score.reward, score.outcome, environment.stop_reason) == (pytest.approx(reward), outcome, stop)


def test_a_gold_answer_in_thinking_is_in_the_policys_text_and_not_rewarded(make):
    environment = make()
    said(environment, "<think>It is glass.</think>I do not say.")
    score = environment.score()
    assert (score.parts["gold_in_answer"], score.parts["exact"], score.reward) == (1.0, 0.0, -0.1)


def test_the_turn_budget_ends_an_episode(make):
    environment = make(max_searches=9, max_turns=2)
    said(environment, call(), call())
    assert environment.stop_reason == "turns"
    assert environment.score().parts["searches"] == 1.0


def test_an_episode_that_was_cut_off_has_no_answer(make):
    environment = make()
    said(environment, "Answer: glass\n" + call())
    assert environment.stop_reason == ""
    assert (environment.score().reward, environment.score().outcome) == (-0.1, "unanswered")


@pytest.mark.parametrize("way", ["agent", "direct", "rag"])
def test_the_expert_gets_the_full_reward(towns, question, way):
    family = SearchToolsFamily(SearchToolsConfig(play=way), towns)
    environment = family.environment(question, len, 0)
    steps = play(family.expert(question), environment)
    assert len(steps) == (2 if way == "agent" else 1)
    assert (environment.score().reward, environment.stop_reason) == (1.0, "finish")


def test_one_shot_rag_and_direct_answers_have_no_tool(make):
    rag, direct = make(play="rag", search_k=1), make(play="direct")
    assert "Content: Brell is a town" in rag.reset()[1].content
    assert "Content" not in direct.reset()[1].content
    assert (rag.score().parts["retrieved"], direct.score().parts["retrieved"]) == (1.0, 0.0)
    for environment in (rag, direct):
        assert not environment.tools
        said(environment, call())
        assert (environment.stop_reason, environment.score().parts["searches"]) == ("invalid", 0.0)
