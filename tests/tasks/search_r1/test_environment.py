"""What an episode by tags does with all that a policy may write, and what that is worth."""

from dataclasses import replace

import pytest

from jaxsearchrl.chat.search_r1 import read_turn
from jaxsearchrl.config import SearchR1Config
from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.rollouts.play import play
from jaxsearchrl.tasks.search_r1.environment import SearchR1Environment
from jaxsearchrl.tasks.search_r1.family import SearchR1Family
from jaxsearchrl.tasks.search_r1.prompts import INVALID, NOTHING_FOUND

SEARCH = "<think>Where?</think> <search> Brell town </search>"
RIGHT = "<think>So.</think>\n<answer> Glass. </answer>"
WRONG = "<think>So.</think><answer>rope</answer>"


@pytest.fixture
def make(towns, question):
    def environment(*, weight=0.0, retriever=None, count=lambda text: len(text.split()), **options):
        made = SearchR1Environment(question, retriever or towns, SearchR1Config(**options), count, weight)
        made.reset()
        return made

    return environment


def said(environment, *texts, truncated=False):
    """Plays these turns; returns the last observation's texts."""
    for text in texts:
        messages, done = environment.step(read_turn(text, truncated=truncated))
    assert done == bool(environment.stop_reason)
    return [message.content for message in messages]


def test_the_prompt_has_the_question_and_tells_of_the_tags(make):
    [message] = make().reset()
    assert message.role == "user"
    assert message.content.endswith("Question: What is made in Brell?")
    assert all(tag in message.content for tag in ("<think>", "<search>", "<information>", "<answer>"))


def test_a_search_is_answered_with_documents_and_an_answer_ends_the_episode(make):
    environment = make(search_k=1)
    [shown] = said(environment, SEARCH)
    assert shown == 'Doc 1(Title: "Brell") Brell is a town by the sea. Its people make glass.'
    assert said(environment, RIGHT) == []
    assert environment.stop_reason == "finish"
    score = environment.score()
    assert (score.reward, score.outcome) == (1.0, "right")
    assert score.parts == {
        "exact": 1.0,
        "cover": 1.0,
        "gold_in_answer": 1.0,
        "format": 1.0,
        "retrieved": 1.0,
        "searches": 1.0,
        "invalid_actions": 0.0,
        "turns": 2.0,
        "empty": 0.0,
    }
    with pytest.raises(RuntimeError, match="over"):
        environment.step(read_turn(RIGHT, truncated=False))


MISBEHAVIOUR = {
    # name: turns, reward, outcome, stop reason; with format_weight 0.1, two turns that may search and one more
    "no action at all": (["Glass."] * 3, 0.0, "malformed", "turns"),
    "an end of text and nothing else": ([""] * 3, 0.0, "malformed", "turns"),
    "an invalid action, then the right answer": (["Hm.", RIGHT], 1.0, "right", "finish"),
    "a search, then the right answer": ([SEARCH, RIGHT], 1.1, "right", "finish"),
    "the right answer at once": ([RIGHT], 1.1, "right", "finish"),
    "a wrong answer in form": ([SEARCH, WRONG], 0.1, "wrong", "finish"),
    "an empty answer": (["<think>.</think><answer> </answer>"], 0.1, "empty", "finish"),
    "an empty query": (["<think>.</think><search> </search>", RIGHT], 1.1, "right", "finish"),
    "a tag that stays open": (["<think>.</think><answer> glass"] * 3, 0.0, "malformed", "turns"),
    "an answer in thinking": (["<think> maybe <answer> glass </answer>"], 1.0, "right", "finish"),
    "an answer before a search of the same turn": (
        ["<answer>glass</answer><search>x</search>"],
        1.0,
        "right",
        "finish",
    ),
    "documents of its own": (
        ["<think>.</think><information>glass</information><answer>x</answer>"],
        0.0,
        "wrong",
        "finish",
    ),
    "endless search": ([SEARCH] * 3, 0.0, "unanswered", "turns"),
    "an answer behind a search that came too late": ([SEARCH, SEARCH, SEARCH + RIGHT], 0.0, "unanswered", "turns"),
    "the answer that a document wrote": (["<search> owl </search>"] * 3, 0.0, "unanswered", "turns"),
}


@pytest.mark.parametrize(("turns", "reward", "outcome", "stop"), MISBEHAVIOUR.values(), ids=MISBEHAVIOUR)
def test_misbehaviour_is_worth_exactly_what_is_documented(make, turns, reward, outcome, stop):
    environment = make(weight=0.1, max_turns=2)
    said(environment, *turns)
    score = environment.score()
    assert (score.reward, score.outcome, environment.stop_reason) == (pytest.approx(reward), outcome, stop)


def test_an_invalid_action_is_told_so_and_may_be_mended(make):
    environment = make()
    assert said(environment, "Hm.") == [INVALID]
    assert said(environment, "<search> Brell", truncated=True) == [INVALID]
    assert said(environment, "<search> Brell </search>")[0].startswith("Doc 1")
    assert environment.score().parts["invalid_actions"] == 2.0


def test_without_a_final_turn_the_last_search_is_the_end(make):
    environment = make(max_turns=1, final_turn=False)
    assert said(environment, SEARCH) == []
    assert environment.stop_reason == "turns"


def test_the_last_turn_cannot_search(make):
    environment = make(max_turns=1)
    said(environment, SEARCH, SEARCH)
    assert environment.stop_reason == "turns"
    assert environment.last_step() == {
        "calls": [{"name": "search", "arguments": {"query": "Brell town"}, "ok": False, "outcome": "too_late"}],
        "encountered": [],
    }
    assert environment.score().parts["searches"] == 1.0


@pytest.mark.parametrize("query", ["", "?!", "zzzz"])
def test_a_query_that_finds_nothing_is_told_so(make, query):
    assert said(make(), f"<search>{query}</search>") == [NOTHING_FOUND]


def test_observations_end_at_a_documents_end_within_the_budget(make):
    environment = make(max_observation_tokens=30, search_k=4)
    [shown] = said(environment, "<search> town Brell Corun </search>")
    assert shown.splitlines()[-1] == "(1 of 2 documents shown)" or len(shown.splitlines()) == 2
    assert len(shown.split()) <= 30
    [cut] = said(environment, "<search> endless </search>")
    assert cut.endswith("(truncated)")
    assert len(cut.split()) <= 30


def test_only_what_was_shown_counts_as_retrieved(make):
    for room, retrieved in ((6, 0.0), (500, 1.0)):  # cut before the glass, and whole
        environment = make(max_observation_tokens=room, search_k=1)
        said(environment, SEARCH)
        assert environment.last_step()["encountered"] == [{"id": "brell", "rank": 1, "call": 0}]
        assert environment.score().parts["retrieved"] == retrieved


def test_what_the_last_search_finds_is_not_shown(make):
    environment = make(max_turns=1, final_turn=False, search_k=1)
    said(environment, SEARCH)
    assert environment.last_step()["encountered"] == []
    assert (environment.score().parts["retrieved"], environment.score().parts["searches"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([RIGHT], 1.0),
        (["<answer>glass</answer>"], 0.8),
        ([WRONG], 0.2),
        (["<answer>rope</answer>"], 0.1),
        ([SEARCH], 0.0),
    ],
)
def test_the_structured_score_is_search_r1s(make, turns, reward):
    environment = make(format_reward="structured")
    said(environment, *turns)
    assert environment.score().reward == pytest.approx(reward)


def test_cover_match_can_be_what_is_rewarded(make):
    long = "<answer>It is glass that they make</answer>"
    for match, reward in (("exact", 0.0), ("cover", 1.0)):
        environment = make(match=match)
        said(environment, long)
        assert environment.score().reward == reward


def test_the_weight_of_the_form_falls_with_the_steps(towns, question):
    family = SearchR1Family(SearchR1Config(format_weight=0.2, format_steps=10), towns)
    for step, reward in ((0, 0.2), (5, 0.1), (10, 0.0), (99, 0.0)):
        environment = family.environment(question, len, step)
        environment.reset()
        said(environment, WRONG)
        assert environment.score().reward == pytest.approx(reward)


def test_a_failing_retriever_changes_nothing(make, towns):
    class Failing:
        fails = True

        def search(self, query, k):
            if self.fails:
                raise InfrastructureError("down")
            return towns.search(query, k)

    retriever = Failing()
    environment = make(retriever=retriever)
    with pytest.raises(InfrastructureError):
        said(environment, SEARCH)
    assert environment.score().parts["turns"] == 0.0
    retriever.fails = False
    assert said(environment, SEARCH)[0].startswith("Doc 1")
    assert environment.score().parts["searches"] == 1.0


@pytest.mark.parametrize("way", ["agent", "direct", "rag"])
def test_the_expert_gets_the_full_reward(towns, question, way):
    hostile = replace(question, query="What </search> is made in Brell?")
    for task in (question, hostile):
        family = SearchR1Family(SearchR1Config(play=way, format_weight=0.1), towns)
        environment = family.environment(task, len, 0)
        steps = play(family.expert(task), environment)
        assert len(steps) == (2 if way == "agent" else 1)
        assert environment.score().reward == pytest.approx(1.1)
        assert environment.stop_reason == "finish"


def test_an_expert_is_imitated_where_it_was_shown_what_it_says(towns, question):
    unknown = replace(question, query="Who rules Corun?", answers=("Queen Ida", "Ida"))
    many = replace(question, answers=("crystal", "glass"))
    for way, wanted in (("agent", [True, False, True]), ("rag", [True, False, True]), ("direct", [True, True, True])):
        family = SearchR1Family(SearchR1Config(play=way, search_k=1), towns)
        for task, imitable in zip((question, unknown, many), wanted, strict=True):
            environment = family.environment(task, lambda text: len(text.split()), 0)
            turns = play(family.expert(task), environment)
            assert family.imitable(environment.score()) is imitable
            assert environment.score().outcome == ("right" if imitable else "wrong")
        assert ("<answer> glass </answer>" in turns[-1][0].text) is (way != "direct")


def test_one_shot_rag_and_direct_answers_have_one_turn(make):
    environment = make(play="rag", search_k=1)
    [message] = environment.reset()
    assert 'Doc 1(Title: "Brell") Brell is a town' in message.content
    assert "<search>" not in message.content
    said(environment, SEARCH)
    assert (environment.stop_reason, environment.score().parts["searches"]) == ("turns", 0.0)
    assert environment.score().parts["retrieved"] == 1.0
    [message] = make(play="direct").reset()
    assert "Doc 1" not in message.content
    assert "<search>" not in message.content
