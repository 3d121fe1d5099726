"""The policy's tags. The environment's text is no argument of anything here, so there is nothing it could pay."""

import random

import pytest

from jaxsearchrl.rewards.tags import format_valid, last_answer, without_tags

SEARCH = "<think>I need facts.</think>\n<search>capital of France</search>"
ANSWER = "<think>Found.</think> <answer>Paris</answer>"


@pytest.mark.parametrize(
    ("turns", "answer"),
    [
        ([], None),
        ([""], None),
        (["Paris"], None),
        (["<answer>Paris</answer>"], "Paris"),  # one is enough: the prompt's example is not among the turns
        (["<answer>\n Paris \n</answer>"], "Paris"),
        (["<answer>New\nYork</answer>"], "New\nYork"),
        (["<answer></answer>"], ""),
        (["<answer>  </answer>"], ""),
        (["<answer>Lyon</answer><answer>Paris</answer>"], "Paris"),
        (["<answer>Lyon</answer>", "<answer>Paris</answer>"], "Paris"),
        (["<answer>Lyon</answer>", "no tag"], "Lyon"),
        (["<answer>Lyon</answer>", "<answer>Paris"], "Lyon"),  # the last complete one
        (["<answer>", "Paris</answer>"], None),  # the environment speaks in between
        (["<answer>Paris"], None),
        (["Paris</answer>"], None),
        (["</answer>Paris<answer>"], None),
        (["<answer>Paris</answer> and </answer>"], "Paris"),  # a stray closing
        (["</answer><answer>Paris</answer>"], "Paris"),
        (["<answer>a<answer>b</answer>"], "a<answer>b"),  # published: the first opening
        (["<answer>a<answer>b</answer></answer>"], "a<answer>b"),
        (["<think>maybe <answer>Paris</answer>"], "Paris"),  # an unclosed <think>
        (["<answer><search>x</search></answer>"], "<search>x</search>"),
        (["<search><answer>x</answer></search>"], "x"),
        (["<Answer>Paris</Answer>"], None),
        (["< answer>Paris</answer>"], None),
        (["<answer >Paris</answer>"], None),
        (["<answer>\ud800</answer>"], "\ud800"),
        ([SEARCH, ANSWER], "Paris"),
    ],
)
def test_last_answer(turns, answer):
    assert last_answer(turns) == answer


@pytest.mark.parametrize(
    "turns",
    [
        [ANSWER],
        [SEARCH, ANSWER],
        (SEARCH, SEARCH, ANSWER),
        ["\n " + SEARCH + "\n\n", "  " + ANSWER + " \n"],
        ["<think></think><search></search>", "<think></think><answer></answer>"],  # published: contents may be empty
        ["<think>a < b > c <b>bold</b> <Search></think><answer>x</answer>"],  # other tags are text
    ],
)
def test_valid_format(turns):
    assert format_valid(turns)


@pytest.mark.parametrize(
    "turns",
    [
        [],
        [""],
        ["Paris"],
        [SEARCH],  # no answer
        [ANSWER, ANSWER],
        [ANSWER, SEARCH],
        [SEARCH, ""],  # a turn without an action
        [SEARCH, "<think>hm</think>", ANSWER],
        ["<answer>Paris</answer>"],  # no think
        [SEARCH, "<answer>Paris</answer>"],
        ["<think>a</think><think>b</think><answer>c</answer>"],
        [SEARCH + ANSWER],  # two actions
        ["<think>a</think><search>b</search><search>c</search>", ANSWER],
        ["<think>a</think><search>b</search><answer>c</answer>"],
        ["<think>a</think><search>b</search><information>c</information>" + ANSWER],  # the policy as environment
        ["<think>a</think><information>b</information><answer>c</answer>"],
        ["<think><information>b</information></think><answer>c</answer>"],
        [SEARCH, "<information>x</information>" + ANSWER],
        ["<think>a</think><answer>b"],  # unclosed
        ["<think>a<answer>b</answer>"],
        ["<think>a</think><answer>b</answer></answer>"],
        ["<think>a</think></answer>b<answer>"],
        ["</think>a<think><answer>b</answer>"],
        ["<think>a</think><search>b</answer>"],
        ["<think>a</think><search>b</answer></search><answer>c"],  # as many openings as closings
        ["<think>a<think>b</think></think><answer>c</answer>"],  # tags inside tags
        ["<think>a</think><answer><think>b</think></answer>"],
        ["<think>a</think><answer>b<answer>c</answer></answer>"],
        ["x" + ANSWER],  # text outside
        ["<think>a</think>x<answer>b</answer>"],
        [ANSWER + "."],
        [ANSWER + "<|im_end|>"],
        [SEARCH + "x", ANSWER],
        [ANSWER + "\ud800"],
        ["<THINK>a</THINK><answer>b</answer>"],
        ["a</think><answer>b</answer>"],  # the prompt opened <think> and the caller did not say so
    ],
)
def test_invalid_format(turns):
    assert not format_valid(turns)


def test_ten_searches_are_as_valid_as_one():
    assert all(format_valid([SEARCH] * count + [ANSWER]) for count in range(11))


def test_only_the_grammar_is_valid():
    """Against the grammar itself, walked a token at a time, over random turns."""
    after = {
        ("start", "<think>"): "in think",
        ("in think", "</think>"): "thought",
        ("thought", "<search>"): "in search",
        ("thought", "<answer>"): "in answer",
        ("in search", "</search>"): "searched",
        ("in answer", "</answer>"): "answered",
    }

    def walk(tokens):
        state = "start"
        for token in tokens:
            if token == "x":
                state = state if state.startswith("in ") else "fault"
            elif token != " ":
                state = after.get((state, token), "fault")
        return state

    rng = random.Random(0)
    pieces = ["<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>", " ", "x"]
    bases = [["<think>", "</think>", f"<{action}>", f"</{action}>"] for action in ("search", "answer")]
    seen = set()
    for _ in range(3000):
        turns = []
        for _ in range(rng.randrange(4)):
            tokens = list(rng.choice(bases))
            for _ in range(rng.randrange(3)):
                tokens.insert(rng.randrange(len(tokens) + 1), rng.choice(pieces + [" ", "x"] * 4))
            turns.append(tokens)
        states = [walk(tokens) for tokens in turns]
        valid = bool(states) and states == ["searched"] * (len(states) - 1) + ["answered"]
        assert format_valid(["".join(tokens) for tokens in turns]) == valid
        seen.add(valid)
    assert seen == {True, False}


def test_one_bare_text_is_refused():
    for function in (last_answer, format_valid):
        for turns in (ANSWER, ""):
            with pytest.raises(TypeError, match="sequence"):
                function(turns)


def test_without_tags():
    assert without_tags("<think>a</think><answer>b</answer><b>") == " a  b <b>"


def test_a_megabyte_is_read_in_one_pass():
    for piece in ("<answer>", "</answer>", "<answer></answer>", "<think>", "<", "</", "<answer", " ", "x"):
        text = piece * (10**6 // len(piece))
        assert not format_valid([text, ANSWER])
        assert last_answer([text, SEARCH]) == ("" if piece == "<answer></answer>" else None)
        assert last_answer([ANSWER, text]) == ("" if piece == "<answer></answer>" else "Paris")
