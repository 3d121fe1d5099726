"""Rollout records: what goes in comes out, whatever a model wrote and whenever the run was killed."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.errors import UserError
from jaxsearchrl.records import (
    CallRecord,
    EncounteredRecord,
    RecordWriter,
    RolloutRecord,
    TurnRecord,
    from_json_line,
    read_file,
    read_records,
    record_steps,
    records_path,
    to_json_line,
    trajectory_fields,
)
from jaxsearchrl.trajectory import Span, Trajectory

# All that a model can emit, NUL and lone surrogates too. (Two surrogates that make a pair are one character.)
TEXTS = st.text(st.characters(), max_size=20).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
) | st.sampled_from(["\0", "\ud800", "\udfff x", "\u2028\r\n", "</script>"])
NUMBERS = st.floats(-1e6, 1e6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=3)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=5)
    trajectory = Trajectory()
    trajectory.append_prompt(draw(ids))
    for _ in range(draw(st.integers(0, 3))):
        sampled = draw(ids)
        trajectory.append_sampled(sampled, [draw(st.floats(-50, 0)) for _ in sampled])
        trajectory.append_observation(draw(ids))
    return trajectory


@st.composite
def records(draw: st.DrawFn) -> RolloutRecord:
    turn = st.builds(
        TurnRecord,
        text=TEXTS,
        reasoning=TEXTS,
        calls=st.lists(st.builds(CallRecord, TEXTS, ARGUMENTS, st.booleans(), TEXTS), max_size=2).map(tuple),
        observation=TEXTS,
        encountered=st.lists(st.builds(EncounteredRecord, TEXTS, st.integers(1, 9)), max_size=2).map(tuple),
        curated=st.lists(TEXTS, max_size=3).map(tuple),
        seconds_model=st.floats(0, 100),
        tokens=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
        truncated=st.booleans(),
    )
    return RolloutRecord(
        **{name: draw(TEXTS) for name in ("run", "split", "task_id", "query", "outcome", "stop_reason")},
        **{name: draw(st.integers(0, 2**63)) for name in ("step", "group", "attempt", "uid", "adapter")},
        **trajectory_fields(draw(trajectories())),
        gold=draw(ARGUMENTS),
        turns=tuple(draw(st.lists(turn, max_size=3))),
        score_parts=draw(st.dictionaries(TEXTS, NUMBERS, max_size=3)),
        reward=draw(st.none() | NUMBERS),
        advantage=draw(st.none() | NUMBERS),
        infrastructure_errors=tuple(draw(st.lists(TEXTS, max_size=2))),
        seconds=draw(st.floats(0, 100)),
    )


def record(**changes: object) -> RolloutRecord:
    base = RolloutRecord("run", "train", 3, "task 1", group=0, attempt=0, uid=7, query="who?", reward=0.5)
    return replace(base, **changes)  # type: ignore[arg-type]


@given(records())
@settings(max_examples=60, deadline=None)
def test_a_record_comes_back_equal_from_one_line_of_ascii(original: RolloutRecord):
    line = to_json_line(original)
    assert "\n" not in line
    assert line.isascii()
    assert from_json_line(line) == original


@given(trajectories())
@settings(max_examples=60, deadline=None)
def test_the_trajectory_comes_back_with_its_mask_and_rounded_logprobs(trajectory: Trajectory):
    back = record(**trajectory_fields(trajectory)).trajectory()
    assert (back.tokens, back.action_mask, back.spans) == (trajectory.tokens, trajectory.action_mask, trajectory.spans)
    assert back.routes == [0] * len(trajectory)
    assert back.sample_logprobs == [round(logprob, 6) for logprob in trajectory.sample_logprobs]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_are_refused(value: float):
    span = {"tokens": (1,), "spans": (Span("sampled", 0, 1),)}
    changes = [{"reward": value}, {"advantage": value}, {"seconds": value}, {"score_parts": {"f1": value}}]
    changes += [{"turns": (TurnRecord(seconds_tools=value),)}, {**span, "sample_logprobs": (value,)}]
    for change in changes:
        with pytest.raises(ValueError, match="non-finite"):
            record(**change)
    with pytest.raises(UserError, match="NaN"):
        from_json_line(to_json_line(record()).replace("0.5", "NaN"))


def test_hostile_arguments_are_words_not_errors():
    nested: object = "bottom"
    for _ in range(500):
        nested = [nested]
    call = CallRecord("bm25_search", {"k": math.nan, "deep": nested, "limit": -math.inf})
    back = from_json_line(to_json_line(record(turns=(TurnRecord(calls=(call,)),))))
    assert back.turns[0].calls[0].arguments["k"] == "nan"
    assert "nested too deep" in json.dumps(back.turns[0].calls[0].arguments)


def test_numpy_numbers_become_plain_ones():
    original = record(
        reward=np.float32(0.5), advantage=np.float64(0.25), tokens=np.arange(2), spans=(Span("prompt", 0, 2),)
    )
    assert from_json_line(to_json_line(original)) == original


def test_spans_must_tile_the_tokens_and_count_the_logprobs():
    for changes in (
        {"tokens": (1, 2), "spans": (Span("prompt", 0, 1),)},
        {"tokens": (1, 2), "spans": (Span("prompt", 0, 1), Span("prompt", 0, 1))},
        {"tokens": (1,), "spans": (Span("sampled", 0, 1),)},
        {"tokens": (1,), "spans": (Span("prompt", 0, 1),), "sample_logprobs": (-1.0,)},
    ):
        with pytest.raises(ValueError, match="task 1"):
            record(**changes)


def test_a_wrong_line_names_place_and_fault():
    line = to_json_line(record())
    for wrong, fault in (
        (line.replace('"schema":1', '"schema":2'), "schema 2, but this version reads 1"),
        (line.replace('"schema":1,', ""), "no key 'schema'"),
        (line.replace('"uid":7,', ""), "'uid'"),
        (line.replace('"uid":7', '"uid":7,"uuid":7'), "unknown key 'uuid'"),
        (line[:-1], "not JSON"),
        ("[]", "expected a JSON object"),
        (line.replace('"reward":0.5', '"reward":0.5,"reward":0.9'), 'the key "reward" stands twice'),
        (line.replace('"gold":{}', '"gold":{"a":' + "[" * 20_000 + "]" * 20_000 + "}"), "nested deeper"),
        (line.replace("0.5", "1e999"), "a number is out of range"),
        (line.replace("0.5", "1" + "0" * 400), "too large"),
    ):
        with pytest.raises(UserError, match=r"^here: ") as caught:
            from_json_line(wrong, "here")
        assert fault in str(caught.value)


def test_nothing_is_converted_to_the_type_that_is_wanted():
    spans = [{"kind": "prompt", "start": 0, "stop": 3}]
    row = json.loads(to_json_line(record(tokens=(1, 2, 3), spans=(Span("prompt", 0, 3),))))
    turn, call = (
        json.loads(to_json_line(record(turns=(TurnRecord(calls=(CallRecord("x"),)),))))["turns"][0],
        {"name": "x"},
    )
    for changes, fault in (
        ({"tokens": "123"}, "tokens must be a list, found '123'"),
        ({"tokens": [1.7, 2.2, 3.9]}, "tokens must be a whole number, found 1.7"),
        ({"tokens": [-5, 2, 3]}, "holds -5, which is no token id"),
        ({"tokens": [1, 10**12, 3]}, "holds 1000000000000, which is no token id"),
        ({"reward": "0.5"}, "reward must be a number, found '0.5'"),
        ({"reward": True}, "reward must be a number, found True"),
        ({"score_parts": {"f1": None}}, "score_parts.f1 must be a number, found None"),
        ({"task_id": 5}, "task_id must be a text, found 5"),
        ({"step": "1"}, "step must be a whole number, found '1'"),
        ({"truncated": 0}, "truncated must be true or false, found 0"),
        ({"gold": []}, "gold must be an object, found []"),
        ({"schema": True}, "schema True"),
        ({"spans": None}, "spans must be a list, found None"),
        ({"spans": [spans[0] | {"stop": 3.0}]}, "spans.stop must be a whole number, found 3.0"),
        ({"spans": [spans[0] | {"kind": ["prompt"]}]}, "spans.kind must be one of prompt, sampled, observation"),
        ({"turns": [3]}, "turns must be an object, found 3"),
        ({"turns": [turn | {"curated": "abc"}]}, "turns.curated must be a list, found 'abc'"),
        ({"turns": [turn | {"tokens": [1]}]}, "turns.tokens must be a list of 2, found [1]"),
        ({"turns": [turn | {"calls": [call | {"ok": "no"}]}]}, "turns.calls.ok must be true or false, found 'no'"),
        ({"turns": [turn | {"calls": [{"ok": True}]}]}, "'name'"),
    ):
        with pytest.raises(UserError, match=r"^here: ") as caught:
            from_json_line(json.dumps(row | changes), "here")
        assert fault in str(caught.value)
    assert from_json_line(json.dumps(row | {"reward": 1, "advantage": None})).reward == 1.0


def write(workdir: Path, *written: RolloutRecord) -> Path:
    with RecordWriter(workdir, "train", 3) as writer:
        for one in written:
            writer.append(one)
    return writer.path


def test_a_step_is_written_whole_or_not_at_all_and_writing_it_again_replaces_it(tmp_path: Path):
    path = write(tmp_path, record(uid=1), record(uid=2))
    first = path.read_bytes()
    with pytest.raises(ValueError, match="step 4"):
        write(tmp_path, record(uid=9), record(step=4))
    assert [one.uid for one in read_records(tmp_path, "train", 3)] == [1, 2]
    assert list(path.parent.iterdir()) == [path]
    assert write(tmp_path, record(uid=1), record(uid=2)).read_bytes() == first
    assert first[4:8] == bytes(4)  # no time in the header: equal records make equal files
    write(tmp_path, record(uid=5))
    assert [one.uid for one in read_records(tmp_path, "train", 3)] == [5]


def test_what_a_killed_writer_left_is_not_a_step(tmp_path: Path):
    writer = RecordWriter(tmp_path, "train", 3)
    writer.__enter__().append(record())
    assert record_steps(tmp_path, "train") == []
    with pytest.raises(UserError, match="no such file"):
        read_records(tmp_path, "train", 3)
    write(tmp_path, record(uid=4))
    assert record_steps(tmp_path, "train") == [3]


def test_a_file_cut_anywhere_gives_its_whole_lines_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    lines = [to_json_line(record(uid=uid)) + "\n" for uid in range(3)]
    whole = "".join(lines).encode()
    path = tmp_path / "cut.jsonl"
    for cut in (len(lines[0]) + len(lines[1]) + 5, len(whole) - 2, 3):
        caplog.clear()
        path.write_bytes(whole[:cut])
        assert [one.uid for one in read_file(path)] == list(range(whole[:cut].count(b"\n")))
        assert "ends in the middle of line" in caplog.text
    caplog.clear()
    for complete in (whole, whole[:-1]):  # some editors leave the last newline out
        path.write_bytes(complete)
        assert len(read_file(path)) == 3
    assert not caplog.text
    path.write_bytes(whole + lines[0].replace('"uid":0', '"uid":null').encode()[:-1])
    with pytest.raises(UserError, match=r"cut\.jsonl, line 4: uid must be a whole number"):
        read_file(path)


def test_a_file_that_cannot_be_read_as_text_is_named_with_the_line(tmp_path: Path):
    line = to_json_line(record(query="e")).encode() + b"\n"
    path = tmp_path / "latin.jsonl"
    path.write_bytes(line + line.replace(b'"query":"e"', b'"query":"\xe9"'))
    with pytest.raises(UserError, match=r"latin\.jsonl, line 2: not UTF-8"):
        read_file(path)
    path.write_bytes(gzip.compress(line))
    with pytest.raises(UserError, match=r"latin\.jsonl, line 1: the file is compressed by gzip"):
        read_file(path)
    for nothing in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(UserError, match=f"{nothing}: cannot be read"):
            read_file(nothing)


def test_a_cut_gzip_file_gives_its_whole_lines_and_a_foreign_file_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rng = np.random.default_rng(0)
    tokens = tuple(int(token) for token in rng.integers(0, 50_000, 20_000))
    path = write(tmp_path, *(record(uid=uid, tokens=tokens, spans=(Span("prompt", 0, 20_000),)) for uid in range(4)))
    path.write_bytes(path.read_bytes()[:-2_000])
    assert [one.uid for one in read_file(path)] == [0, 1, 2]
    assert "ends in the middle of line" in caplog.text
    path.write_bytes(b"not gzip")
    with pytest.raises(UserError, match="cannot be read"):
        read_file(path)
    path.write_bytes(gzip.compress(b'{"schema": 1}\n'))
    with pytest.raises(UserError, match=r"step_000003.jsonl.gz, line 1: .*'run'"):
        read_file(path)


def test_the_path_of_a_step_is_the_documented_one(tmp_path: Path):
    assert records_path(tmp_path, "eval", 12) == tmp_path / "rollouts" / "eval" / "step_000012.jsonl.gz"
