"""The benchmarks at a tiny size: their accounting, and that nothing is compiled after the first call."""

import json

import numpy as np
import pytest

from benchmarks import search_server
from benchmarks.head import Head, run_head
from benchmarks.learner import Learn, run_learner
from benchmarks.run import NAMES, main, table, workloads
from benchmarks.sampler import Decode, Episode, run_decode, run_episode
from benchmarks.shapes import SHAPES, random_model
from jaxsearchrl.models.architecture import tensor_shapes


def test_the_published_shapes_have_their_published_sizes():
    sizes = {name: sum(np.prod(shape) for shape in tensor_shapes(arch).values()) for name, arch in SHAPES.items()}
    assert sizes["135m"] == 134_515_008
    assert sizes["0.5b"] == 494_032_768


def test_every_lora_factor_is_at_work():
    _, _, lora = random_model("tiny")
    assert len(lora) == 2 * 7 * SHAPES["tiny"].layers
    assert all(np.any(np.asarray(value)) for value in lora.values())


def test_decode_compiles_nothing_after_construction():
    figures = run_decode("tiny", Decode(rows=2, prompt=24, new=8))
    assert figures["compilations"] > 0
    assert figures["compilations later"] == 0
    assert figures["tokens/s"] == pytest.approx(2 * 1000 / figures["ms/step"])


def test_an_episode_computes_its_prompt_once_and_each_observation_once():
    figures = run_episode("tiny", Episode(rows=3, prompt=40, turns=3, sampled=6, observed=9))
    assert figures["prompt tokens"] == 40 - 1
    assert figures["forked tokens"] == 2 * (40 - 1)
    assert figures["observation tokens"] == 3 * 2 * 9
    assert figures["written tokens"] == figures["ideal tokens"] - 1
    assert figures["sampled tokens"] == 3 * 3 * 6
    assert figures["compilations later"] == 0


def test_learner_compiles_nothing_for_shorter_rows():
    figures = run_learner("tiny", Learn(rows=3, tokens=64, pack_rows=2))
    assert figures["compilations"] > 0
    assert figures["compilations later"] == 0


def test_the_head_needs_less_than_tokens_by_vocabulary():
    figures = run_head("tiny", Head(tokens=2048, vocabulary=5000, width=32))
    assert 0 < figures["temporary GiB"] < figures["tokens x vocabulary GiB"] / 2


def test_the_command_writes_its_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JAXSEARCHRL_CACHE", str(tmp_path))
    out = tmp_path / "figures.json"
    main(["--workload", "head", "--size", "tiny", "--out", str(out)])
    results = json.loads(out.read_text())
    assert results["machine"]["cores"] >= 1
    assert results["workloads"]["head"]["peak memory GiB"] > 0.01
    assert "head (tiny)" in capsys.readouterr().out


def test_an_unknown_workload_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--workload", "w1,w9"])
    assert "'w9' is none of w1, w2" in capsys.readouterr().err


def test_every_named_workload_exists():
    assert set(workloads("tiny")) == set(NAMES)


def test_a_table_aligns_its_values():
    assert table("t", {"a": 1, "long": 1234.5}) == "t\n  a     1\n  long  1,234.500"


def test_the_search_server_is_compared_with_the_index_itself():
    rows = search_server.main(["--documents", "50", "--queries", "20"])
    assert [row["clients"] for row in rows] == [1, 8]
    for row in rows:
        assert row["added p50 ms"] == row["served p50 ms"] - row["direct p50 ms"]
        assert 0 < row["served p50 ms"] <= row["served p99 ms"]
