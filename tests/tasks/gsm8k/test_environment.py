"""One turn, one number."""

import pytest

from jaxsearchrl.chat.tool_json import read_turn
from jaxsearchrl.config import GSM8KConfig
from jaxsearchrl.errors import UserError
from jaxsearchrl.rollouts.play import play
from jaxsearchrl.tasks.gsm8k.family import GSM8KFamily
from jaxsearchrl.tasks.questions import Question

SUM = Question("s1", "What is 6 times 1,200?", ("7200",))

TURNS = {
    # what is said: reward with format_weight 0.1, outcome
    "<think>6 * 1200</think> <answer> 7,200 </answer>": (1.1, "right"),
    "<answer>$7200.00</answer>": (1.0, "right"),
    "<think>7200</think><answer>7201</answer>": (0.1, "wrong"),
    "<think>7200</think><answer>a lot</answer>": (0.1, "unanswered"),
    "6 * 1,200 = 7,200.": (1.0, "right"),
    r"So \boxed{7200}, not 7.": (1.0, "right"),
    "7200 or 72": (0.0, "wrong"),
    "I do not know.": (0.0, "unanswered"),
    "": (0.0, "unanswered"),
    "<answer>1</answer> <answer>7200</answer>": (1.0, "right"),
    # The form is that of the turn as it was written.
    "<think></think><answer>7200</answer>": (1.1, "right"),
    "<answer>7200</answer><think>after</think>": (1.0, "right"),
    "<answer>7200</answer><think>open": (1.0, "right"),
    "<think>a</think><think>b</think><answer>7200</answer>": (1.0, "right"),
    "<think>a</think><answer><think>b</think>7200</answer>": (1.0, "right"),
    '<think>a</think><answer>7200</answer><tool_call>{"name": "x", "arguments": {}}</tool_call>': (1.0, "right"),
    # An answer is one number.
    "<answer>14400/2</answer>": (0.0, "unanswered"),
    "<answer>1 2 7200</answer>": (0.0, "unanswered"),
    "<answer>72<think>x</think>00</answer>": (0.0, "unanswered"),
    r"<answer>\(7{,}200\)</answer>": (1.0, "right"),
    r"\boxed{7\,200 \text{ eggs}}": (1.0, "right"),
}


@pytest.mark.parametrize(("text", "worth"), TURNS.items(), ids=TURNS)
def test_a_turn_is_worth_its_number_and_its_form(text, worth):
    environment = GSM8KFamily(GSM8KConfig(format_weight=0.1)).environment(SUM, len, 0)
    [message] = environment.reset()
    assert message.content.endswith("Problem: What is 6 times 1,200?")
    assert environment.stop_reason == ""
    turn = read_turn(text, truncated=False)  # as the chat format reads it: what is thought stands apart
    assert environment.step(turn) == ([], True)
    score = environment.score()
    assert (score.reward, score.outcome, environment.stop_reason) == (pytest.approx(worth[0]), worth[1], "finish")
    with pytest.raises(RuntimeError, match="over"):
        environment.step(turn)


def test_the_expert_gets_the_full_reward():
    family = GSM8KFamily(GSM8KConfig(format_weight=0.1))
    environment = family.environment(SUM, len, 0)
    play(family.expert(SUM), environment)
    assert environment.score().reward == pytest.approx(1.1)


def test_a_gold_answer_that_is_no_number_is_refused():
    with pytest.raises(UserError, match=r'sums\.jsonl: task "s2" has the answer \'many\', which is no number'):
        GSM8KFamily(GSM8KConfig()).check([SUM, Question("s2", "?", ("many",))], "sums.jsonl")
