"""Harness-1's supervised rows as demonstrations: what each of its tools becomes, and what is left out."""

import json
from collections import Counter

import pytest

from benchmarks.harness1_data import write_table
from jaxsearchrl.data.harness1_rows import Query
from jaxsearchrl.data.harness1_sft import read_demonstrations
from jaxsearchrl.errors import UserError
from jaxsearchrl.messages import AssistantTurn, ToolCall
from jaxsearchrl.tasks.curated.data import Fact, Task

FACTS = (Fact("who", ("a_1", "a_2")), Fact("when", ("b_0",), True))
KNOWN = Query(Task("f_0", "Who and when?", FACTS, "Ada"), "f")
HELD_OUT = Query(Task("h_0", "Held out?", (Fact("x", ("h_9",)),)), "h")
CORPUS = {"a_1", "b_0", "c_3", "h_9"}
FINISH = AssistantTurn(calls=(ToolCall("finish", {}),))


def search(query):
    return ToolCall("bm25_search", {"query": query})


def curate(*ids):
    return ToolCall("curate", {"document_ids": list(ids)})


def drop(*ids):
    return ToolCall("drop_curated", {"document_ids": list(ids)})


def read(document_id):
    return ToolCall("read_document", {"document_id": document_id})


def row(*history, curated=("a_1",), payload=(), **columns):
    entries = [
        {"turn_idx": number, "tool_name": tool, "params": params, "reasoning": f"why {number}", "observation": "…"}
        for number, (tool, params) in enumerate(history)
    ]
    body = {"format_version": "ultra_v3", "curated_ids": list(curated), "turn_history": entries, **dict(payload)}
    values = {"stage": "sft", "dataset_name": "sec", "query_id": "f_0", "query": "who and  when?"}
    return {**values, "payload_json": json.dumps(body), **columns}


def demonstrations(tmp_path, *rows):
    write_table(tmp_path / "t.parquet", list(rows))
    return list(read_demonstrations([tmp_path / "t.parquet"], [KNOWN], [HELD_OUT], CORPUS))


def turns(tmp_path, *history, **more):
    """The turns of a row without `finish`, and what was left out of it."""
    [(demonstration, lost)] = demonstrations(tmp_path, row(*history, **more))
    assert demonstration is not None
    assert demonstration.turns[-1] == FINISH
    return demonstration.turns[:-1], +lost


CURATE = ("curate", {"add_ids": ["a_1"]})


def test_a_row_becomes_its_actions_in_this_tasks_tools(tmp_path):
    played, lost = turns(
        tmp_path,
        ("search_corpus", {"query": " first "}),
        ("fan_out_search", {"queries": ["one", "two", "?!"]}),
        ("grep_corpus", {"pattern": "lease(s)?"}),
        ("read_document", {"doc_id": "a_1"}),
        ("review_docs", {"doc_ids": ["a_1", "b_0"]}),
        ("curate", {"add_ids": ["a_1", "b_0", "c_3"], "remove_ids": []}),
        ("curate", {"add_ids": [], "remove_ids": ["c_3"]}),
        ("end_search", {"reasoning": "done"}),
        ("search_corpus", {"query": "after the end"}),
        curated=["b_0", "a_1"],
    )
    assert [turn.calls for turn in played] == [
        (search("first"),),
        (search("one"), search("two")),
        (ToolCall("grep_corpus", {"pattern": "lease(s)?"}),),
        (read("a_1"),),
        (read("a_1"), read("b_0")),
        (curate("a_1", "b_0", "c_3"),),
        (drop("c_3"),),
    ]
    assert [turn.reasoning for turn in played] == [f"why {number}" for number in range(7)]
    assert not lost


def test_the_task_is_that_of_the_question_with_its_id_and_text(tmp_path):
    [(demonstration, _)] = demonstrations(tmp_path, row(CURATE))
    assert demonstration.task == Task("f_0", "who and  when?", FACTS)
    own = json.dumps([{"fact": "own", "chunk_ids": ["c_3"], "is_final_answer": True}])
    [(demonstration, _)] = demonstrations(tmp_path, row(CURATE, query="new?", document_ids_json=own, answer="7"))
    assert demonstration.task == Task("f_0", "new?", (Fact("own", ("c_3",), True),), "7")


def test_what_has_no_counterpart_is_counted(tmp_path):
    played, lost = turns(
        tmp_path,
        ("verify", {"doc_ids": ["a_1"], "claim": "so"}),
        ("prune", {}),
        ("grep_corpus", {"pattern": "(?=x)"}),
        ("grep_corpus", {"pattern": "x" * 161}),
        ("search_corpus", {}),
        ("read_document", {"doc_id": "z_1"}),
        ("curate", {"add_ids": ["a_1", "z_2"], "importance": "high"}),
    )
    assert [turn.calls for turn in played] == [(curate("a_1"),)]
    assert lost == Counter(
        {
            "calls of verify": 1,
            "calls of prune": 1,
            "calls of grep_corpus without anything that can be done here": 2,
            "calls of search_corpus without anything that can be done here": 1,
            "calls of read_document without anything that can be done here": 1,
            "ids that the corpus lacks": 2,
            "importance of curated documents": 1,
        }
    )


def test_calls_of_one_turn_stay_together(tmp_path):
    rows = row(("search_corpus", {"query": "one"}), ("search_corpus", {"query": "two"}), CURATE)
    body = json.loads(rows["payload_json"])
    for entry, turn in zip(body["turn_history"], (0, 0, 1), strict=True):
        entry["turn_idx"] = turn
    [(demonstration, _)] = demonstrations(tmp_path, rows | {"payload_json": json.dumps(body)})
    assert [turn.calls for turn in demonstration.turns[:-1]] == [(search("one"), search("two")), (curate("a_1"),)]
    assert demonstration.turns[0].reasoning == "why 0\nwhy 1"


@pytest.mark.parametrize(
    ("history", "curated", "completed"),
    [
        # what their harness curated by itself, after the first search
        ([("search_corpus", {"query": "q"}), CURATE], ["a_1", "b_0"], (curate("b_0"),)),
        # what it evicted
        ([CURATE, ("curate", {"add_ids": ["b_0"]})], ["b_0"], (drop("a_1"),)),
        ([CURATE], ["b_0"], (curate("b_0"), drop("a_1"))),
    ],
)
def test_the_recorded_set_is_reached_before_the_end(tmp_path, history, curated, completed):
    played, lost = turns(tmp_path, *history, curated=curated)
    assert played[-1].calls == completed
    assert lost == Counter({"curated sets completed before finish": 1})


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dataset_name": "web"}, "data set web"),
        ({"payload": {"format_version": "ultra_v2"}}, "format ultra_v2"),
        ({"query": "Another question?"}, "no facts, and no question of this id and text that has some"),
        ({"query_id": "other_0"}, "no facts, and no question of this id and text that has some"),
        (
            {"query_id": "h_1", "document_ids_json": '[{"fact": "f", "chunk_ids": ["a_1"]}]'},
            "shares a family, gold or text with a held-out question",
        ),
        (
            {"document_ids_json": '[{"fact": "f", "chunk_ids": ["a_1", "h_9"]}]'},
            "shares a family, gold or text with a held-out question",
        ),
        (
            {"query": "HELD out?", "document_ids_json": '[{"fact": "f", "chunk_ids": ["a_1"]}]'},
            "shares a family, gold or text with a held-out question",
        ),
        ({"document_ids_json": '[{"fact": "f", "chunk_ids": ["z_1"]}]'}, "the corpus lacks a fact's chunks"),
        ({"curated": ["z_1"]}, "nothing of this corpus curated"),
    ],
)
def test_rows_that_must_or_can_not_be_taught_are_left_out_by_reason(tmp_path, changed, reason):
    history = [] if "curated" in changed else [CURATE]
    assert demonstrations(tmp_path, row(*history, **changed)) == [(None, Counter([reason]))]


def test_rows_of_other_stages_are_not_looked_at(tmp_path):
    assert demonstrations(tmp_path, row(CURATE, stage="rl", payload_json=None)) == []


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object, found list"),
        (None, "must be an object, found NoneType"),
        ('{"format_version": "ultra_v3", "turn_history": {}}', "turn_history must hold a list, found dict"),
        ('{"format_version": "ultra_v3", "turn_history": [7]}', "entry 0 must be an object, found int"),
        (
            '{"format_version": "ultra_v3", "turn_history": [{"tool_name": "curate", "params": "x"}]}',
            "params is not JSON",
        ),
    ],
)
def test_what_cannot_be_read_is_named_by_row(tmp_path, payload, words):
    with pytest.raises(UserError, match=words) as error:
        demonstrations(tmp_path, row(CURATE), row(CURATE, payload_json=payload))
    assert str(error.value).startswith(f'{tmp_path / "t.parquet"}: row 2: "payload_json"')
