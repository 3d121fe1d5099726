"""Demonstrations: their file, and how they are played on a corpus that answers otherwise than theirs did."""

import json

import pytest

from jaxsearchrl.errors import UserError
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.rollouts.play import play
from jaxsearchrl.tasks.curated.data import Fact, Task
from jaxsearchrl.tasks.curated.demonstrations import (
    FINISH,
    Demonstration,
    DemonstrationAgent,
    load_demonstrations,
    to_row,
)

FACTS = (Fact("phobos", ("mars",)), Fact("degrees", ("owl",), True))
TASK = Task("q1", "Which moons?", FACTS, "two")


def call(name, **arguments):
    return ToolCall(name, arguments)


def demonstration(*turns) -> Demonstration:
    return Demonstration(TASK, tuple(AssistantTurn(reasoning="so", calls=calls) for calls in turns))


def played(environment, *turns) -> list:
    return [turn for turn, _ in play(DemonstrationAgent(demonstration(*turns)), environment)]


def test_a_file_gives_back_what_was_written(tmp_path):
    first = demonstration([call("bm25_search", query="ä", k=3)], [call("curate", document_ids=["a"])], [call("finish")])
    second = Demonstration(Task("q2", "?", FACTS), (FINISH,))
    lines = [json.dumps(to_row(one)) + "\n" for one in (first, second)]
    (tmp_path / "d.jsonl").write_text("".join(lines))
    read = load_demonstrations(tmp_path / "d.jsonl")
    assert [(one.task, [(turn.reasoning, [*turn.calls]) for turn in one.turns]) for one in read] == [
        (one.task, [(turn.reasoning, [*turn.calls]) for turn in one.turns]) for one in (first, second)
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"turns": 7}, '"turns" must be a list'),
        ({"turns": [[]]}, r"turns\[0\]: expected a JSON object"),
        ({"turns": [{"calls": [{"name": ""}]}]}, r'turns\[0\]: calls\[0\]: "name" is empty'),
        ({"turns": [{"calls": [{"name": "finish"}]}]}, r'key "arguments" is missing'),
        ({"turns": [{"call": []}]}, 'unknown key "call"; did you mean "calls"'),
        ({"facts": []}, '"facts" is empty'),
        ({"turn": []}, 'unknown key "turn"; did you mean "turns"'),
    ],
)
def test_faults_are_named_by_line_and_key(tmp_path, change, words):
    (tmp_path / "d.jsonl").write_text(json.dumps(to_row(demonstration()) | change) + "\n")
    with pytest.raises(UserError, match=words) as error:
        load_demonstrations(tmp_path / "d.jsonl")
    assert f"{tmp_path / 'd.jsonl'}:1" in str(error.value)


@pytest.mark.parametrize("compact", [False, True])
def test_ids_that_no_search_has_shown_here_are_not_used(make_environment, compact):
    environment = make_environment(compact_results=compact)
    turns = played(
        environment,
        [call("read_document", document_id="mars")],  # not shown yet: passed over
        [call("bm25_search", query="phobos", k=1)],
        [call("read_document", document_id="mars"), call("read_document", document_id="owl")],
        [call("curate", document_ids=["mars", "owl", "tea"])],
        [call("grep_corpus", pattern="270", k=1), call("curate", document_ids=["owl"])],
        [call("curate", document_ids=["owl"]), call("drop_curated", document_ids=["tea", "mars"])],
    )
    assert [[*turn.calls] for turn in turns] == [
        [call("bm25_search", query="phobos", k=1)],
        [call("read_document", document_id="mars")],
        [call("curate", document_ids=["mars"])],
        [call("grep_corpus", pattern="270", k=1)],
        [call("curate", document_ids=["owl"]), call("drop_curated", document_ids=["mars"])],
        [call("finish")],
    ]
    assert [turn.reasoning for turn in turns] == ["so"] * 5 + [""]
    parts = environment.score().parts
    assert (environment.stop_reason, parts["refused_ids"], parts["recall"]) == ("finish", 0, 0.5)


def test_what_a_document_says_is_not_a_search_result(make_environment):
    """The text that is read has a line of the short form's own syntax."""
    environment = make_environment(compact_results=True)
    turns = played(
        environment,
        [call("bm25_search", query="trapdoor", k=1)],
        [call("read_document", document_id="trap")],
        [call("curate", document_ids=["mars"])],
    )
    assert len(turns) == 3
    assert environment.last_step()["curated"] == []
