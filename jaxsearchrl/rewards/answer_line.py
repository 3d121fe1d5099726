"""The `Answer: …` line that ends a turn in llm-agent-rl-lab's tool-call experiment."""


def answer_line(text: str) -> str | None:
    r"""What stands on the text's only `Answer:` line, stripped ("" if blank); None without such a line or with several.

    Pass the policy's last turn only. Kept of the published extraction: any case; whitespace before `Answer:` but
    nothing else (`**Answer:** X` and `The Answer: X` are no such line); text after the line, though the prompt wants
    it last; a second line is a fault even if it says the same.

    Mended: the answer must stand on the line itself. Published, whitespace may span lines, so that the line after a
    bare `Answer:` became the answer, even where that is the real `Answer: X` (read as one line that says "Answer: X").
    Here these are no answer and two lines. It also made a megabyte of newlines take hours; this takes one pass. Lines
    end at `\n`, as there.
    """
    lines = (line.strip() for line in text.split("\n"))
    answers = [line[len("answer:") :].strip() for line in lines if line[: len("answer:")].lower() == "answer:"]
    return answers[0] if len(answers) == 1 else None
