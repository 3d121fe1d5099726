"""The generic half of the configuration: typed leaves, dotted keys, JSON, differences."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.config import Config, EvalConfig, LearningConfig, LoraConfig, TelemetryConfig, TrainConfig
from jaxsearchrl.config_tree import (
    diff,
    fits,
    from_json,
    leaf_types,
    leaf_values,
    parse_value,
    to_json,
    type_errors,
    unknown_key,
    with_values,
)
from jaxsearchrl.errors import ConfigError

TYPES = leaf_types(Config())


def values_of(wanted: Any) -> st.SearchStrategy:
    if get_origin(wanted) is Literal:
        return st.sampled_from(get_args(wanted))
    if get_origin(wanted) is tuple:
        return st.lists(values_of(get_args(wanted)[0]), max_size=3).map(tuple)
    return {
        int: st.integers(-(10**12), 10**12),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(max_size=8),
    }[wanted]


CONFIGS = st.fixed_dictionaries({key: values_of(wanted) for key, wanted in TYPES.items()}).map(
    lambda values: with_values(Config(), values)
)


def test_every_key_has_a_value_that_fits_its_type():
    values = leaf_values(Config())
    assert list(values) == list(TYPES)
    assert "learning.learning_rate" in TYPES
    assert all(fits(TYPES[key], value) for key, value in values.items())


@given(CONFIGS)
@settings(max_examples=20)
def test_json_gives_back_the_same_configuration(config):
    again = from_json(Config, to_json(config), "config.json")
    assert again == config
    assert type_errors(again) == []


@given(st.sampled_from(sorted(TYPES)), st.data())
def test_a_value_written_as_text_parses_to_itself(key, data):
    value = data.draw(values_of(TYPES[key]))
    if isinstance(value, tuple):
        value = tuple(item for item in value if item.strip() == item and item and "," not in item)
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    assert parse_value(key, TYPES[key], text) == value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("learning.learning_rate", "1e-4", 1e-4),
        ("learning.learning_rate", "3", 3.0),
        ("train.seed", "010", 10),
        ("train.steps", "-3", -3),
        ("name", "no", "no"),
        ("name", "", ""),
        ("name", "1e-4", "1e-4"),
        ("telemetry.plots", "False", False),
        ("lora.modules", "q_proj, v_proj", ("q_proj", "v_proj")),
        ("lora.modules", "", ()),
        ("model.weights_dtype", "bfloat16", "bfloat16"),
    ],
)
def test_texts_are_read_by_the_type_of_their_key(key, text, value):
    parsed = parse_value(key, TYPES[key], text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("train.steps", "1e3", "whole number"),
        ("train.steps", "1.0", "whole number"),
        ("train.steps", "", "whole number"),
        ("train.seed", "12:30", "whole number"),
        ("train.seed", "true", "whole number"),
        ("learning.learning_rate", "nan", "finite number"),
        ("learning.learning_rate", "inf", "finite number"),
        ("learning.learning_rate", "1e-4x", "finite number"),
        ("telemetry.plots", "no", "true or false"),
        ("telemetry.plots", "1", "true or false"),
        ("model.weights_dtype", "fp16", "one of 'float32', 'bfloat16'"),
    ],
)
def test_a_text_of_the_wrong_type_names_key_value_and_type(key, text, wanted):
    with pytest.raises(ConfigError) as error:
        parse_value(key, TYPES[key], text)
    assert str(error.value).startswith(f"{key} = {text!r}: ")
    assert wanted in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(learning=LearningConfig(learning_rate="1e-4")), "learning.learning_rate = '1e-4' (str)"),  # type: ignore[arg-type]
        (Config(learning=LearningConfig(learning_rate=True)), "learning.learning_rate = True (bool)"),
        (Config(learning=LearningConfig(learning_rate=float("nan"))), "learning.learning_rate = nan (float)"),
        (Config(learning=LearningConfig(learning_rate=10**400)), "(int): a finite number is wanted"),
        (Config(train=TrainConfig(steps=4.0)), "train.steps = 4.0 (float): a whole number"),  # type: ignore[arg-type]
        (Config(train=TrainConfig(seed=True)), "train.seed = True (bool)"),
        (Config(telemetry=TelemetryConfig(plots="false")), "telemetry.plots = 'false' (str)"),  # type: ignore[arg-type]
        (Config(name=False), "name = False (bool): a text"),  # type: ignore[arg-type]
        (Config(lora=LoraConfig(modules="q_proj")), "lora.modules = 'q_proj' (str)"),  # type: ignore[arg-type]
        (Config(lora=LoraConfig(modules=["q_proj"])), "write a tuple"),  # type: ignore[arg-type]
        (Config(lora=LoraConfig(modules=("q_proj", 3))), "lora.modules = ('q_proj', 3)"),  # type: ignore[arg-type]
        (Config(learning=LearningConfig(schedule="exp")), "one of 'constant', 'linear', 'cosine'"),  # type: ignore[arg-type]
        (Config(eval={"every": 3}), "eval = {'every': 3}: EvalConfig(...) is wanted"),  # type: ignore[arg-type]
        (Config(eval=TrainConfig()), "eval = TrainConfig("),  # type: ignore[arg-type]
    ],
)
def test_types_are_checked_however_the_tree_was_built(config, message):
    (error,) = type_errors(config)
    assert message in error


def test_a_whole_number_is_a_fine_float():
    assert type_errors(Config(learning=LearningConfig(loss_constant=512))) == []


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("learning.learning_rat", "learning.learning_rate"),
        ("learning_rate", "learning.learning_rate"),
        ("train.groupsize", "train.group_size"),
        ("group_size", "train.group_size"),
        ("sampling.temprature", "sampling.temperature"),
        ("nme", "name"),
    ],
)
def test_an_unknown_key_names_the_nearest(key, nearest):
    assert f"nearest valid key is {nearest}" in unknown_key(key, TYPES)
    with pytest.raises(ConfigError, match="unknown key"):
        with_values(Config(), {key: 1})


def test_an_unknown_key_of_a_known_section_lists_the_section():
    message = unknown_key("learning.lr", TYPES)
    assert "learning.lr" in message
    assert "learning_rate" in message
    assert "group_size" not in message


def test_a_section_is_not_a_value():
    assert "eval is a section" in unknown_key("eval", TYPES)
    assert "eval.tries" in unknown_key("eval", TYPES)


def test_with_values_leaves_the_original_and_the_rest_alone():
    before = Config()
    after = with_values(before, {"learning.b1": 0.5, "name": "x"})
    assert (after.learning.b1, after.name) == (0.5, "x")
    assert before == Config()
    assert with_values(after, {"learning.b1": before.learning.b1, "name": ""}) == before


def test_diff_names_each_changed_key_with_both_values():
    a = Config()
    b = with_values(a, {"train.steps": 99, "lora.modules": ("q_proj",), "eval.greedy": False})
    assert diff(a, b) == [
        ("lora.modules", a.lora.modules, ("q_proj",)),
        ("train.steps", a.train.steps, 99),
        ("eval.greedy", True, False),
    ]
    assert diff(a, a) == []


def test_json_of_an_older_run_takes_defaults_for_keys_it_lacks():
    data = json.loads(to_json(Config(eval=EvalConfig(tries=7))))
    del data["eval"]["greedy"], data["telemetry"]
    assert from_json(Config, json.dumps(data), "x") == Config(eval=EvalConfig(tries=7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "an object of sections is wanted"),
        ('{"learning": {"lr": 1}}', "unknown key learning.lr"),
        ('{"learning": 3}', "learning is a section"),
        ('{"name": {"a": 1}}', "name = {'a': 1}"),
        ('{"train": {"steps": "4"}}', "train.steps = '4' (str)"),
        ('{"learning": {"eps": NaN}}', "NaN is not JSON"),
        ('{"learning": {"eps": 1' + "0" * 400 + "}}", "learning.eps = 1000"),
        ('{"learning": {"eps": 1e999}}', "a number is out of range"),
        ('{"train": {"steps": 1, "steps": 2}}', 'the key "steps" stands twice'),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested deeper"),
    ],
)
def test_bad_json_names_the_file_and_the_key(text, message):
    with pytest.raises(ConfigError) as error:
        from_json(Config, text, "runs/x/config.json")
    assert str(error.value).startswith("runs/x/config.json:")
    assert message in str(error.value)


def test_works_on_any_tree():
    @dataclass(frozen=True)
    class Leaf:
        sizes: tuple[int, ...] = (1, 2)

    assert leaf_types(Leaf()) == {"sizes": tuple[int, ...]}
    assert parse_value("sizes", tuple[int, ...], "3,4") == (3, 4)
    assert type_errors(replace(Leaf(), sizes=(1, "2"))) != []  # type: ignore[arg-type]


@dataclass(frozen=True)
class Tea:
    name: Literal["tea"] = "tea"
    minutes: int = 3


@dataclass(frozen=True)
class Coffee:
    name: Literal["coffee"] = "coffee"
    grams: int = 10


@dataclass(frozen=True)
class Order:
    cups: int = 1
    drink: Tea | Coffee = field(default_factory=Tea)


def test_the_keys_are_those_of_the_section_that_is_there():
    tea, coffee = Order(), Order(drink=Coffee())
    assert list(leaf_types(tea)) == ["cups", "drink.name", "drink.minutes"]
    assert list(leaf_types(coffee)) == ["cups", "drink.name", "drink.grams"]
    assert with_values(coffee, {"drink.grams": 12}).drink == Coffee(grams=12)
    with pytest.raises(ConfigError, match=r"unknown key drink\.minutes; .*keys of drink: name, grams"):
        with_values(coffee, {"drink.minutes": 4})
    assert type_errors(coffee) == []
    assert type_errors(Order(drink=3)) == ["drink = 3: Tea(...) or Coffee(...) is wanted"]  # type: ignore[arg-type]
    assert diff(tea, coffee) == [("drink.name", "tea", "coffee")]


def test_json_tells_a_section_by_its_name():
    for order in (Order(cups=2), Order(drink=Coffee(grams=7))):
        assert from_json(Order, to_json(order), "order.json") == order
    assert from_json(Order, '{"drink": {"minutes": 5}}', "order.json") == Order(drink=Tea(minutes=5))
    for name in ('"milk"', "3", "[]", "{}"):
        with pytest.raises(ConfigError, match=r"order\.json: drink\.name = .*: one of 'tea', 'coffee' is wanted"):
            from_json(Order, f'{{"drink": {{"name": {name}}}}}', "order.json")
    with pytest.raises(ConfigError, match=r"order\.json: unknown key drink\.minutes"):
        from_json(Order, '{"drink": {"name": "coffee", "minutes": 5}}', "order.json")
