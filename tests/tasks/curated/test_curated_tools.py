"""Tool schemas, and the check of what a model gives as arguments."""

import pytest

from jaxsearchrl.config import CuratedConfig
from jaxsearchrl.tasks.curated.tools import ArgumentsError, check_arguments, terse, tool_specs, usage

SPECS = tool_specs(CuratedConfig(search_default_k=4, search_max_k=7, max_curated=12))


def test_the_six_tools_state_the_limits():
    assert list(SPECS) == ["bm25_search", "grep_corpus", "read_document", "curate", "drop_curated", "finish"]
    k = SPECS["grep_corpus"].parameters["properties"]["k"]
    assert (k["minimum"], k["maximum"]) == (1, 7)
    assert "default 4" in k["description"]
    assert "at most 12" in SPECS["curate"].description


def test_terse_tools_keep_the_required_arguments_only():
    short = [terse(spec) for spec in SPECS.values()]
    assert [(spec.name, list(spec.parameters["properties"])) for spec in short] == [
        ("bm25_search", ["query"]),
        ("grep_corpus", ["pattern"]),
        ("read_document", ["document_id"]),
        ("curate", ["document_ids"]),
        ("drop_curated", ["document_ids"]),
        ("finish", []),
    ]
    assert short[3].parameters["properties"]["document_ids"] == {"type": "array", "items": {"type": "string"}}
    assert all(spec.parameters["required"] == list(spec.parameters["properties"]) for spec in short)


@pytest.mark.parametrize(
    ("tool", "arguments", "checked"),
    [
        ("bm25_search", {"query": "a b"}, {"query": "a b"}),
        ("bm25_search", {"query": "a", "k": None}, {"query": "a"}),
        ("bm25_search", {"query": "a", "k": " 5 "}, {"query": "a", "k": 5}),
        ("bm25_search", {"query": "a", "k": 5.0}, {"query": "a", "k": 5}),
        ("bm25_search", {"query": "a", "k": 10**30}, {"query": "a", "k": 7}),
        ("bm25_search", {"query": "\ud800x"}, {"query": "\ufffdx"}),
        (
            "grep_corpus",
            {"pattern": "x" * 160, "case_sensitive": "True"},
            {"pattern": "x" * 160, "case_sensitive": True},
        ),
        ("curate", {"document_ids": "d1"}, {"document_ids": ["d1"]}),
        ("curate", {"document_ids": ["d2", "d1", "d2"]}, {"document_ids": ["d2", "d1"]}),
        ("finish", {}, {}),
    ],
)
def test_arguments_whose_meaning_is_plain_are_taken(tool, arguments, checked):
    assert check_arguments(SPECS[tool], arguments) == checked


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("bm25_search", {}, "argument 'query' is missing"),
        ("bm25_search", {"query": None}, "argument 'query' is missing"),
        ("bm25_search", {"query": ["a"]}, "'query' must be a string, not a list"),
        ("bm25_search", {"query": "  "}, "'query' is empty"),
        ("bm25_search", {"query": "a", "top_k": 3}, "unknown argument 'top_k'"),
        ("bm25_search", {"query": "a", "k": True}, "'k' must be a whole number, not true or false"),
        ("bm25_search", {"query": "a", "k": 2.5}, "'k' must be a whole number, not a fractional number"),
        ("bm25_search", {"query": "a", "k": float("nan")}, "'k' must be a whole number"),
        ("bm25_search", {"query": "a", "k": "9" * 5000}, "'k' must be a whole number, not a string"),
        ("bm25_search", {"query": "a", "k": 0}, "'k' must be at least 1"),
        ("bm25_search", {"query": "a", "k": "-3"}, "'k' must be at least 1"),
        ("grep_corpus", {"pattern": "x" * 161}, "'pattern' has 161 characters, at most 160"),
        ("grep_corpus", {"pattern": "x", "case_sensitive": 1}, "'case_sensitive' must be true or false, not a number"),
        ("read_document", {"document_id": 7}, "'document_id' must be a string, not a number"),
        ("curate", {"document_ids": [1]}, "'document_ids' must be a list of strings, not a list with a number"),
        ("curate", {"document_ids": [["a"]]}, "not a list with a list with a string"),
        ("curate", {"document_ids": {"a": 1}}, "must be a list of strings, not an object"),
        ("curate", {"document_ids": []}, "'document_ids' is an empty list"),
        ("finish", {"document_ids": ["a"]}, "unknown argument 'document_ids'"),
    ],
)
def test_other_arguments_are_refused_with_the_fault_and_the_right_form(tool, arguments, words):
    with pytest.raises(ArgumentsError) as error:
        check_arguments(SPECS[tool], arguments)
    assert words in str(error.value)
    assert str(error.value).endswith(f"; use {usage(SPECS[tool])}")


def test_usage_reads_like_a_signature():
    assert usage(SPECS["grep_corpus"]) == "grep_corpus(pattern: string, case_sensitive?: boolean, k?: integer)"
    assert usage(SPECS["curate"]) == "curate(document_ids: list of strings)"
    assert usage(SPECS["finish"]) == "finish()"


def test_a_made_up_argument_name_is_quoted_in_part():
    with pytest.raises(ArgumentsError) as error:
        check_arguments(SPECS["finish"], {"x" * 10_000: 1})
    assert len(str(error.value)) < 120
