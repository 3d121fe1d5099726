"""From config files and command lines to a configuration."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.config import Config, EvalConfig
from jaxsearchrl.config_flags import load_config, split_overrides
from jaxsearchrl.errors import ConfigError

EXAMPLE = Path(__file__).parents[1] / "configs" / "curated_jsonl.py"
HEADER = "from jaxsearchrl.config import *\n\n"


@pytest.fixture
def config_file(tmp_path):
    def write(body, name="mine.py"):
        path = tmp_path / name
        path.write_text(HEADER + body)
        return str(path)

    return write


def test_overrides_are_taken_out_of_the_arguments():
    argv = [
        "prog",
        "--config=a.py",
        "--config.x.y=1",
        "--workdir",
        "w",
        "-config.z",
        "-0.5",
        "--dry_run",
        "--config.n=",
    ]
    rest, overrides = split_overrides(argv)
    assert rest == ["prog", "--config=a.py", "--workdir", "w", "--dry_run"]
    assert overrides == [("x.y", "1"), ("z", "-0.5"), ("n", "")]


@given(st.text(alphabet="abc._", min_size=1), st.text())
def test_any_value_survives_the_equals_sign(key, text):
    assert split_overrides([f"--config.{key}={text}"]) == ([], [(key, text)])


@pytest.mark.parametrize("argv", [["--config.train.steps"], ["--config.telemetry.plots", "--dry_run"]])
def test_an_override_without_value_is_refused(argv):
    with pytest.raises(ConfigError, match="lacks its value"):
        split_overrides(argv)


def test_arguments_after_a_double_dash_are_left_alone():
    assert split_overrides(["p", "--", "--config.a=1"]) == (["p", "--", "--config.a=1"], [])


def test_file_and_overrides_in_order(config_file):
    path = config_file("def get_config():\n    return Config(eval=EvalConfig(tries=9, tasks=5))\n")
    config = load_config(path, [("eval.tries", "2"), ("learning.learning_rate", "1e-4"), ("eval.tries", "3")])
    assert config.eval == EvalConfig(tries=3, tasks=5)
    assert config.learning.learning_rate == 1e-4
    assert config.name == "mine"


def test_a_name_of_its_own_is_kept(config_file):
    path = config_file("def get_config():\n    return Config(name='other')\n")
    assert load_config(path) == Config(name="other")


def test_a_misspelt_override_names_the_nearest_key(config_file):
    path = config_file("def get_config():\n    return Config()\n")
    with pytest.raises(ConfigError, match=r"nearest valid key is learning\.learning_rate"):
        load_config(path, [("learning.learning_rte", "1")])


def test_a_key_of_another_task_family_is_said_to_be_one(config_file):
    path = config_file("def get_config():\n    return Config()\n")
    with pytest.raises(ConfigError, match=r"^task\.match is a key of SearchR1Config, but this .* is a CuratedConfig$"):
        load_config(path, [("task.match", "cover")])
    with pytest.raises(
        ConfigError, match=r"^task\.retriever\.url is a key of SearchR1Config or SearchToolsConfig, but"
    ):
        load_config(path, [("task.retriever.url", "x")])
    with pytest.raises(ConfigError, match=r"task\.name: the config file chooses the family: task=CuratedConfig or "):
        load_config(path, [("task.name", "search_r1")])
    assert load_config(path, [("task.name", "curated")]).task.name == "curated"


def test_a_misspelt_key_within_a_tasks_section_names_the_nearest(config_file):
    path = config_file("def get_config():\n    return Config(task=SearchR1Config())\n")
    with pytest.raises(ConfigError, match=r"nearest valid key is task\.retriever\.url"):
        load_config(path, [("task.retriever.ulr", "x")])
    config = load_config(path, [("task.retriever.kind", "search_r1"), ("task.retriever.timeout", "2.5")])
    assert (config.task.retriever.kind, config.task.retriever.timeout) == ("search_r1", 2.5)


def test_a_file_of_wrong_types_is_said_to_be_one_beside_an_override(config_file):
    path = config_file("def get_config():\n    return Config(task='search_r1')\n")
    with pytest.raises(ConfigError, match=r"task = 'search_r1': CuratedConfig\(\.\.\.\) or "):
        load_config(path, [("task.match", "cover")])


def test_a_wrong_override_names_key_value_and_type(config_file):
    path = config_file("def get_config():\n    return Config()\n")
    with pytest.raises(ConfigError, match=r"train\.steps = 'many': a whole number is wanted"):
        load_config(path, [("train.steps", "many")])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "mine.py: defines no function get_config"),
        ("get_config = 3\n", "mine.py: defines no function get_config"),
        ("def get_config():\n    return {'train': 1}\n", "mine.py: get_config() returned a dict, not a"),
        ("def get_config():\n    return Config\n", "mine.py: get_config() returned a type, not a"),
        ("def get_config(:\n", "mine.py:3: SyntaxError"),
        ("import nowhere_to_be_found\n", "mine.py:3: ModuleNotFoundError"),
        ("def get_config():\n    return 1 / 0\n", "mine.py:4: ZeroDivisionError"),
        (
            "def get_config():\n    return Config(learning=LearningConfig(learning_rte=1))\n",
            "mine.py:4: TypeError",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_line(config_file, body, message):
    with pytest.raises(ConfigError) as error:
        load_config(config_file(body))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("call", "nearest"),
    [
        ("LearningConfig(learning_rte=1)", "learning.learning_rate"),
        ("TrainConfig(groupsize=4)", "train.group_size"),
        ("Config(evaluation=1)", "eval."),
    ],
)
def test_a_misspelt_field_in_a_file_names_the_nearest_key(config_file, call, nearest):
    with pytest.raises(ConfigError) as error:
        load_config(config_file(f"def get_config():\n    return {call}\n"))
    assert f"the nearest valid key is {nearest}" in str(error.value)


def test_a_missing_file_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--config=nope\.py: no such file") as error:
        load_config("nope.py")
    assert str(tmp_path) in str(error.value)


def test_loading_and_validating_does_not_import_jax():
    code = (
        "import sys, jaxsearchrl.main; from jaxsearchrl.config_flags import load_config; load_config(sys.argv[1]);"
        "heavy = {'jax', 'flax', 'transformers', 'torch', 'tantivy'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, str(EXAMPLE)], check=True)
