import pytest

from jaxsearchrl.rewards.answer_line import answer_line


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: Paris", "Paris"),
        ("I looked it up.\nAnswer:  Paris  \n", "Paris"),
        ("answer:Paris", "Paris"),
        ("ANSWER: Paris", "Paris"),
        ("  \tAnswer: Paris", "Paris"),
        ("Answer: Paris\r\n", "Paris"),
        ("Answer: Paris\nand that is final", "Paris"),  # kept: what follows is tolerated
        ("Answer: a: b", "a: b"),
        ("Answer: Answer: Paris", "Answer: Paris"),
        ("Answer:", ""),
        ("Answer:  \n", ""),
        ("Answer:\nParis", ""),  # mended: published "Paris"
        ("Answer:\n\nI do not know.", ""),
        ("Answer:\nAnswer: Paris", None),  # mended: published one line that says "Answer: Paris"
        ("Answer: Paris\nAnswer: Lyon", None),
        ("Answer: Paris\nAnswer: Paris", None),
        ("Answer: Paris\nAnswer:", None),
        ("**Answer:** Paris", None),
        ("The Answer: Paris", None),
        ("Answer : Paris", None),
        ("Answers: Paris", None),
        ("Final answer\nParis", None),
        ("<answer>Paris</answer>", None),
        ("an\u017fwer: Paris", None),  # a long s is no s
        ("Answer: \ud800", "\ud800"),
        ("", None),
    ],
)
def test_answer_line(text, answer):
    assert answer_line(text) == answer


def test_a_megabyte_is_read_in_one_pass():
    for piece in ("\n", " ", "Answer:\n", "Answer:", "\r", "\t\n"):
        text = piece * (10**6 // len(piece))
        assert answer_line(text + "\nAnswer: Paris") == (None if piece.startswith("Answer") else "Paris")
