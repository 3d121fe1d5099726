"""Every spelling of a row of Harness-1's query table, and what is refused by file, row and column."""

import json
from collections import Counter

import pytest

from benchmarks.harness1_data import write_table
from jaxsearchrl.data.harness1_rows import family_of, read_queries
from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.curated.data import Fact

FACTS = [
    {"fact": "who", "chunk_ids": ["a_1", "a_2", "a_1"], "is_final_answer": False},
    {"fact": "when", "chunk_ids": ["b_0"], "is_final_answer": True},
]
READ = (Fact("who", ("a_1", "a_2")), Fact("when", ("b_0",), True))
ROW = {"stage": "rl", "dataset_name": "sec", "query_id": "f_0", "query": "who?", "document_ids_json": json.dumps(FACTS)}


def read(tmp_path, *rows, stage="rl"):
    write_table(tmp_path / "t.parquet", list(rows))
    return read_queries([tmp_path / "t.parquet"], stage)


@pytest.mark.parametrize(
    "spelled",
    [
        json.dumps(FACTS),
        repr(FACTS),
        "  " + repr(tuple(FACTS)) + "\n",
        json.dumps([{**FACTS[0], "chunk_ids": json.dumps(FACTS[0]["chunk_ids"])}, FACTS[1]]),
        json.dumps([{**FACTS[0], "is_final_answer": "False"}, {**FACTS[1], "is_final_answer": "True"}]),
        json.dumps([{**FACTS[0], "is_final_answer": None}, {**FACTS[1], "is_final_answer": 1, "more": "keys"}]),
    ],
)
def test_facts_are_read_however_they_are_spelled(tmp_path, spelled):
    (query,), left_out = read(tmp_path, ROW | {"document_ids_json": spelled})
    assert query.task.facts == READ
    assert (query.task.id, query.family, query.task.query, query.task.answer) == ("f_0", "f", "who?", "")
    assert query.gold == {"a_1", "a_2", "b_0"}
    assert not left_out


def test_native_lists_and_the_older_column_are_read(tmp_path, search_r1):
    native = {key: value for key, value in ROW.items() if key != "document_ids_json"} | {"document_ids": FACTS}
    search_r1.write(tmp_path / "native.parquet", [native])
    literal = native | {"document_ids": repr(FACTS)}
    search_r1.write(tmp_path / "literal.parquet", [literal])
    for name in ("native", "literal"):
        (query,), _ = read_queries([tmp_path / f"{name}.parquet"], "rl")
        assert query.task.facts == READ


def test_rows_that_make_no_question_are_counted_by_reason(tmp_path):
    rows = [
        ROW,
        ROW | {"stage": "sft"},
        ROW | {"dataset_name": "web", "document_ids_json": '["doc1"]'},
        ROW | {"query": " \n"},
        ROW | {"document_ids_json": "[]"},
        ROW | {"document_ids_json": None},
        ROW | {"document_ids_json": json.dumps([FACTS[0] | {"chunk_ids": []}])},
    ]
    queries, left_out = read(tmp_path, *rows)
    assert len(queries) == 1
    assert left_out == Counter(
        {"stage sft": 1, "data set web": 1, "no question": 1, "no facts": 2, "a fact without chunks": 1}
    )


def test_a_file_without_stages_is_read_whole(tmp_path, search_r1):
    rows = [{key: value for key, value in ROW.items() if key != "stage"}]
    search_r1.write(tmp_path / "t.parquet", rows)
    assert len(read_queries([tmp_path / "t.parquet"])[0]) == 1
    with pytest.raises(UserError, match='column "stage" is missing'):
        read_queries([tmp_path / "t.parquet"], "rl")


def test_all_rows_of_one_id_are_kept_for_the_draw(tmp_path):
    queries, _ = read(tmp_path, ROW, ROW | {"query": "later?"}, ROW | {"stage": "test", "query": "another split's"})
    assert [query.task.query for query in queries] == ["who?", "later?"]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("document_ids_json", "[{'fact': ", "is neither JSON .* nor a Python literal"),
        ("document_ids_json", "__import__('os')", "is neither JSON"),
        ("document_ids_json", "[" * 10_000, "is neither JSON"),
        ("document_ids_json", '{"fact": 1}', "must hold a list, found dict"),
        ("document_ids_json", '["doc1"]', r"fact 1 is a document id \('doc1'\)"),
        ("document_ids_json", '[{"fact": "f"}]', 'fact 1 must be an object with "fact", "chunk_ids"'),
        ("document_ids_json", '[{"fact": "f", "chunk_ids": [7]}]', "fact 1: chunk_ids must be texts"),
        ("document_ids_json", '[{"fact": "f", "chunk_ids": [" "]}]', "fact 1: chunk_ids must be texts"),
        ("document_ids_json", '[{"fact": [], "chunk_ids": ["a"]}]', '"fact" must be a text'),
        (
            "document_ids_json",
            '[{"fact": "f", "chunk_ids": ["a"], "is_final_answer": "perhaps"}]',
            '"is_final_answer" must be true or false',
        ),
        ("query_id", "", '"query_id" is empty'),
    ],
)
def test_what_cannot_be_read_is_named_by_row_and_column(tmp_path, column, value, words):
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path, ROW, ROW | {column: value})
    assert str(error.value).startswith(f'{tmp_path / "t.parquet"}: row 2: "{column}"')


@pytest.mark.parametrize(
    ("query_id", "family"), [("abc_2", "abc"), ("a_b_10", "a_b"), ("abc", "abc"), ("abc_x", "abc_x"), ("_0", "_0")]
)
def test_the_family_is_the_id_without_the_number_of_the_variant(query_id, family):
    assert family_of(query_id) == family
