"""What validation refuses, and how it says so."""

import dataclasses

import pytest

from jaxsearchrl.config import (
    ChatConfig,
    Config,
    GSM8KConfig,
    LearningConfig,
    SamplingConfig,
    SearchR1Config,
    SearchToolsConfig,
    WarmStartConfig,
)
from jaxsearchrl.config_checks import LIMITED_KEYS, check_resume, validate
from jaxsearchrl.config_tree import leaf_types, leaf_values, with_values
from jaxsearchrl.errors import ConfigError


def faults(config, **options):
    """The lines of validation's complaint; none when it accepts."""
    try:
        validate(config, **options)
    except ConfigError as error:
        return str(error).split("\n  ")[1:]
    return []


FAMILIES = [
    Config(),
    Config(task=SearchR1Config(), chat=ChatConfig(format="search_r1")),
    Config(task=SearchToolsConfig(), sampling=SamplingConfig(capacity=2048), learning=LearningConfig(pack_tokens=2048)),
    Config(task=GSM8KConfig()),
]


def faults_of(changes):
    """Of the first family that has the keys."""
    home = next(family for family in FAMILIES if changes.keys() <= leaf_values(family).keys())
    return faults(with_values(home, changes), check_files=False)


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.task.name)
def test_the_defaults_are_valid(config):
    assert faults(config, check_files=False) == []


def test_every_number_has_a_limit():
    types = {key: wanted for family in FAMILIES for key, wanted in leaf_types(family).items()}
    assert {key for key, wanted in types.items() if wanted in (int, float)} == LIMITED_KEYS


@pytest.mark.parametrize("key", sorted(LIMITED_KEYS))
def test_a_number_out_of_its_range_names_its_key(key):
    value = 7 if key in ("task.empty_penalty", "task.invalid_reward") else -1
    assert any(fault.startswith(f"{key} = {value}: must be ") for fault in faults_of({key: value}))


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("train.group_size", 1, 2),
        ("sampling.temperature", 0.0, 0.1),
        ("sampling.temperature", 0.0009, 0.001),
        ("eval.temperature", 0.0009, 0.001),
        ("sampling.slots", 0, 1),
        ("lora.rank", 0, 1),
        ("lora.alpha", 0.0, 0.5),
        ("learning.b1", 1.0, 0.0),
        ("learning.b2", 1.0, 0.999),
        ("learning.eps", 0.0, 1e-15),
        ("learning.loss_constant", 0.0, 1.0),
        ("task.empty_penalty", 0.1, 0.0),
        ("task.empty_penalty", -1.1, -1.0),
        ("task.format_penalty", -0.1, 0.1),
        ("task.beta", 0.0, 0.1),
        ("task.beta", 1e300, 1000.0),
        ("task.max_curated", 0, 1),
        ("eval.tasks", 0, 1),
        ("eval.tries", 0, 1),
        ("checkpoint.keep_last", 0, 1),
        ("train.max_infrastructure_share", 1.5, 1.0),
        ("train.seed", 2**31, 2**31 - 1),
    ],
)
def test_the_edges_of_ranges(key, bad, good):
    assert [fault.split(" = ")[0] for fault in faults_of({key: bad})] == [key]
    assert faults_of({key: good}) == []


@pytest.mark.parametrize(
    ("key", "value", "single"),
    [
        ("learning.eps", 1e-46, "0"),
        ("learning.eps", 1e-40, "0"),  # devices flush what is below 1.2e-38
        ("learning.max_grad_norm", 1e-45, "0"),
        ("learning.b1", 0.99999999, "1"),
        ("learning.learning_rate", 1e39, "inf"),
        ("warm_start.learning_rate", 10**39, "inf"),
    ],
)
def test_limits_hold_for_the_float32_that_devices_compute_with(key, value, single):
    (fault,) = faults_of({key: value})
    assert fault.startswith(f"{key} = {value}: must be ")
    assert fault.endswith(f"in float32, with which devices compute, it is {single}")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"task.search_default_k": 26}, ("task.search_default_k", "task.search_max_k")),
        (
            {"task.max_observation_tokens": 624},
            ("sampling.capacity", "sampling.max_turn_tokens", "task.max_observation_tokens"),
        ),
        ({"sampling.read_block": 100}, ("sampling.capacity", "sampling.read_block")),
        ({"learning.pack_tokens": 1023}, ("learning.pack_tokens", "sampling.capacity")),
        ({"learning.warmup_steps": 16}, ("learning.warmup_steps", "train.steps")),
        ({"eval.temperature": 0.0}, ("eval.tries", "eval.temperature")),
        ({"eval.every": 0}, ("checkpoint.keep_best", "eval.every")),
        ({"warm_start.records": "old_run"}, ("warm_start.trajectories", "warm_start.records")),
        ({"warm_start.demonstrations": "d.jsonl"}, ("warm_start.trajectories", "warm_start.demonstrations")),
        (
            {"warm_start.demonstrations": "d", "warm_start.records": "r", "warm_start.trajectories": 1},
            ("warm_start.demonstrations", "warm_start.records"),
        ),
        ({"name": "runs/x"}, ("name",)),
        ({"name": ".."}, ("name",)),
        ({"lora.modules": ("q_proj", "q_proj")}, ("lora.modules",)),
        ({"lora.modules": ("q_proj", "lm_head")}, ("lora.modules", "lm_head", "the output head is frozen")),
        ({"lora.modules": ("embed_tokens",)}, ("lora.modules", "embed_tokens")),
        ({"mesh.data": 4}, ("learning.pack_rows = 2: must be a multiple of mesh.data = 4; raise it to 4",)),
        ({"mesh.data": 2, "sampling.slots": 31}, ("sampling.slots = 31", "of mesh.data = 2; raise it to 32")),
        ({"mesh.fsdp": 3}, ("learning.pack_rows = 2: must be a multiple of mesh.fsdp = 3; raise it to 3",)),
        ({"mesh.data": 2, "mesh.fsdp": 2}, ("of mesh.data x mesh.fsdp = 2 x 2; raise it to 4",)),
    ],
)
def test_an_impossible_combination_names_its_keys(changes, named):
    (fault,) = faults_of(changes)
    for name in named:
        assert name in fault


@pytest.mark.parametrize(
    "changes",
    [
        {"task.max_observation_tokens": 623},
        {"learning.pack_tokens": 1024},
        {"learning.warmup_steps": 15},
        {"eval.temperature": 0.0, "eval.tries": 1},
        {"eval.every": 0, "checkpoint.keep_best": 0},
        {"warm_start.records": "old_run", "warm_start.trajectories": 1},
        {"warm_start.demonstrations": "d.jsonl", "warm_start.trajectories": 1},
        {"mesh.data": 2, "mesh.tensor": 8, "mesh.expert": 8},
        {"mesh.data": 2, "mesh.fsdp": 2, "learning.pack_rows": 4},
        {"mesh.tensor": 3, "sampling.slots": 31, "learning.pack_rows": 3},
    ],
)
def test_the_possible_neighbour_is_accepted(changes):
    assert faults_of(changes) == []


def test_a_number_of_any_length_is_answered():
    (fault,) = faults_of({"task.max_turns": 10**400})
    assert fault == "task.max_turns: must be below 2147483648, since counts are of 32 bits"


def test_a_text_with_a_nul_is_refused_before_it_names_a_file():
    (fault,) = faults_of({"task.train_tasks": "a\0b"})
    assert fault == "task.train_tasks = 'a\\x00b': has a NUL character, which no name has"


def test_a_prompt_may_not_allow_more_searches_than_turns():
    (fault,) = faults_of({"task.max_searches": 6})
    assert "task.max_turns = 6 turns, the last of which answers, only 5 are possible" in fault
    assert faults_of({"task.max_searches": 5}) == faults_of({"task.max_searches": 6, "task.play": "rag"}) == []


SERVER = {"task.retriever.kind": "search_r1", "task.retriever.url": "http://10.0.0.7:8000/retrieve"}


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"task.retriever.url": "http://h/retrieve"}, "task.retriever.url", "kind = 'local' makes no use of it"),
        ({"task.retriever.cache_file": "c"}, "task.retriever.cache_file", "kind = 'local' makes no use of it"),
        ({**SERVER, "task.retriever.text_field": "body"}, "task.retriever.text_field", "leave it at 'text'"),
        ({**SERVER, "task.corpus": "c.jsonl"}, "task.corpus", "would not be searched"),
        ({**SERVER, "task.index_dir": "i"}, "task.index_dir", "would not be searched"),
        ({**SERVER, "task.retriever.tries": 0}, "task.retriever.tries", "at least 1"),
        ({**SERVER, "task.retriever.timeout": 0.0}, "task.retriever.timeout", "above 0"),
        ({"task.retriever.kind": "elasticsearch"}, "task.retriever.url", "an address like"),
        (
            {**SERVER, "task.retriever.kind": "elasticsearch", "task.retriever.title_field": ""},
            "task.retriever.title_field",
            "name the field",
        ),
        *(
            ({**SERVER, "task.retriever.url": url}, "task.retriever.url", says)
            for url, says in (
                ("", "an address like"),
                ("10.0.0.7:8000", "an address like"),
                ("ftp://h/x", "an address like"),
                ("http://", "an address like"),
                ("http://h:x/", "an address like"),
                ("http://h:99999/", "an address like"),
                ("http://h/retrieve?key=1", "nothing after its path"),
                ("http://h/retr ieve", "an address like"),
                ("http://me:secret@h/retrieve", "give them by environment variable"),
            )
        ),
    ],
    ids=str,
)
def test_an_impossible_retriever_names_its_key(changes, key, says):
    (fault,) = faults_of(changes)
    assert fault.startswith(key)
    assert says in fault
    assert "secret" not in fault


def test_a_retriever_elsewhere_needs_no_corpus_and_no_network(tmp_path):
    home = next(family for family in FAMILIES if "task.retriever.url" in leaf_values(family))
    required = ("task.corpus",)
    assert faults(home, required=required) != []
    assert faults(with_values(home, SERVER), required=required) == []
    (fault,) = faults(with_values(home, {**SERVER, "task.retriever.cache_file": str(tmp_path)}))
    assert fault.endswith("is a folder; a file is wanted")


def test_web_searches_have_addresses_of_their_own():
    for kind in ("zhihu", "wikipedia"):
        assert faults_of({"task.retriever.kind": kind}) == []
        assert (
            faults_of({"task.retriever.kind": kind, "task.retriever.url": "https://de.wikipedia.org/w/api.php"}) == []
        )
        (fault,) = faults_of({"task.retriever.kind": kind, "task.retriever.url": "nowhere"})
        assert fault.startswith("task.retriever.url = 'nowhere'")


def test_a_run_may_go_on_with_its_server_elsewhere_but_not_with_another_engine():
    old = with_values(FAMILIES[1], SERVER)
    moved = {"task.retriever.url": "http://10.0.0.8:9000/retrieve", "task.retriever.timeout": 60.0}
    check_resume(old, with_values(old, {**moved, "task.retriever.tries": 5, "task.retriever.cache_file": "c"}), "here")
    with pytest.raises(
        ConfigError, match=r"task\.retriever\.kind: the run has 'search_r1', this command 'elasticsearch'"
    ):
        check_resume(old, with_values(old, {"task.retriever.kind": "elasticsearch"}), "here")


def test_demonstrations_are_of_the_curated_set():
    warm = WarmStartConfig(trajectories=1, demonstrations="d.jsonl")
    (fault,) = faults(Config(task=GSM8KConfig(), warm_start=warm), check_files=False)
    assert fault.startswith("warm_start.demonstrations: are of the curated set; task.name = 'gsm8k'")


def test_all_faults_are_listed_at_once():
    changes = {"train.group_size": 1, "sampling.slots": 0, "task.search_default_k": 26, "task.corpus": "nowhere.jsonl"}
    found = faults(with_values(Config(), changes))
    assert {fault.split(" = ")[0] for fault in found} == set(changes)


def test_wrong_types_are_reported_before_values_are_compared():
    config = dataclasses.replace(Config(), train=dataclasses.replace(Config().train, group_size="8"))
    (fault,) = faults(config)
    assert fault.startswith("train.group_size = '8' (str)")


def test_missing_files_are_named_unless_files_are_not_checked():
    changes = {
        "task.corpus": "c.jsonl",
        "task.train_tasks": "t.jsonl",
        "task.eval_tasks": "e.jsonl",
        "task.prompt_file": "p.txt",
        "model.path": "m",
        "model.tokenizer": "tok",
    }
    config = with_values(Config(), changes)
    assert {fault.split(" = ")[0] for fault in faults(config)} == set(changes)
    assert faults(config, check_files=False) == []


def test_the_demo_needs_no_files():
    keys = ("task.corpus", "task.train_tasks", "task.eval_tasks", "model.path")
    assert faults(with_values(Config(), dict.fromkeys(keys, "demo")), required=keys) == []


def test_present_files_are_accepted(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.jsonl").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    changes = {
        "task.corpus": str(tmp_path / "a.jsonl"),
        "task.train_tasks": str(tmp_path / "a.jsonl"),
        "task.eval_tasks": str(tmp_path / "b.jsonl"),
        "model.path": str(tmp_path / "model"),
    }
    assert faults(with_values(Config(), changes)) == []
    assert faults(with_values(Config(), {**changes, "task.corpus": str(tmp_path)})) == []  # a folder of notes


def test_what_lies_at_the_model_path_must_be_a_model(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.touch()
    (fault,) = faults(with_values(Config(), {"model.path": str(weights)}))
    assert ".gguf" in fault
    (fault,) = faults(with_values(Config(), {"model.path": str(tmp_path)}))
    assert "without config.json" in fault
    gguf = tmp_path / "x.gguf"
    gguf.touch()
    assert faults(with_values(Config(), {"model.path": str(gguf)})) == []


def test_an_index_folder_that_is_a_file_is_refused(tmp_path):
    file = tmp_path / "index"
    file.touch()
    (fault,) = faults(with_values(Config(), {"task.index_dir": str(file)}))
    assert fault.startswith("task.index_dir")


def test_evaluating_on_the_training_tasks_is_refused(tmp_path):
    tasks, link = tmp_path / "tasks.jsonl", tmp_path / "link.jsonl"
    tasks.touch()
    link.symlink_to(tasks)
    for eval_tasks in (tasks, link, tmp_path / "." / "tasks.jsonl"):
        changes = {"task.train_tasks": str(tasks), "task.eval_tasks": str(eval_tasks)}
        (fault,) = faults(with_values(Config(), changes))
        assert "task.train_tasks" in fault
        assert "task.eval_tasks" in fault


def test_required_keys_may_not_be_empty():
    (fault,) = faults(Config(), required=("task.corpus",))
    assert fault.startswith("task.corpus is empty")
    assert "--config.task.corpus=" in fault


@pytest.mark.parametrize("format", ["chatml", "search_r1", "qwen_xml", "harmony"])
@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.task.name)
def test_a_task_is_played_in_its_own_formats_only(config, format):
    known = {"search_r1": ["search_r1"], "gsm8k": ["chatml", "qwen_xml"]}
    formats = known.get(config.task.name, ["chatml", "qwen_xml", "harmony"])
    found = faults(with_values(config, {"chat.format": format}), check_files=False)
    wanted = " or ".join(map(repr, formats))
    fault = f"chat.format = {format!r}: task.name = {config.task.name!r} is played in {wanted}"
    assert found == ([] if format in formats else [fault])


def test_a_setting_that_the_format_does_not_read_is_refused():
    for values, fault in (
        ({"format": "harmony", "thinking": False}, "'harmony' does not read it, only 'chatml' and 'qwen_xml'; leave"),
        ({"format": "harmony", "terse_tools": True}, "'harmony' does not read it, only 'chatml'; leave it out"),
        ({"format": "qwen_xml", "terse_tools": True}, "'qwen_xml' does not read it, only 'chatml'; leave it out"),
        ({"header": "routing"}, "chat.header = 'routing': chat.format = 'chatml' does not read it, only 'harmony'"),
        ({"date": "2031-01-02"}, "chat.date = '2031-01-02': chat.format = 'chatml' does not read it"),
        ({"reasoning": "high"}, "chat.reasoning = 'high': chat.format = 'chatml' does not read it, only 'harmony'"),
        ({"format": "harmony", "date": "2031-02-30"}, "chat.date = '2031-02-30': must be a date, YYYY-MM-DD"),
        ({"format": "harmony", "date": "20310203"}, "chat.date = '20310203': must be a date, YYYY-MM-DD"),
    ):
        [found] = faults_of({f"chat.{key}": value for key, value in values.items()})
        assert fault in found
    for values in ({"thinking": False}, {"format": "harmony", "date": "2031-01-02", "reasoning": "low"}):
        assert not faults_of({f"chat.{key}": value for key, value in values.items()})


def test_the_structured_score_has_no_further_weight():
    [fault] = faults_of({"task.format_reward": "structured", "task.format_weight": 0.1})
    assert fault.startswith("task.format_weight = 0.1: task.format_reward = 'structured' has weights of its own")


def test_a_sum_needs_room_for_its_question():
    gsm8k = FAMILIES[3]
    [fault] = faults(with_values(gsm8k, {"sampling.max_turn_tokens": 1024}), check_files=False)
    assert fault.startswith("sampling.capacity = 1024: leaves no room for the question")


def test_a_resumed_run_may_change_its_length_and_its_reports():
    old = Config()
    changes = {
        "train.steps": 99,
        "train.epochs": 2,
        "eval.every": 1,
        "checkpoint.keep_last": 5,
        "telemetry.wandb_project": "x",
    }
    check_resume(old, with_values(old, changes), "runs/x")


@pytest.mark.parametrize(
    "key", ["name", "learning.learning_rate", "train.group_size", "train.seed", "model.path", "eval.tasks"]
)
def test_a_resumed_run_may_change_nothing_else(key):
    old = Config()
    new = with_values(old, {key: "other" if leaf_types(old)[key] is str else 5, "train.steps": 99})
    with pytest.raises(ConfigError) as error:
        check_resume(old, new, "runs/x")
    header, *lines = str(error.value).split("\n  ")
    assert header.startswith("runs/x belongs to a run with other settings")
    assert lines == [f"{key}: the run has {leaf_values(old)[key]!r}, this command {leaf_values(new)[key]!r}"]


def test_a_decaying_run_may_not_change_its_length():
    old = with_values(Config(), {"learning.schedule": "cosine"})
    check_resume(old, old, "runs/x")
    with pytest.raises(ConfigError, match=r"train\.steps: the run has 16, this command 32"):
        check_resume(old, with_values(old, {"train.steps": 32}), "runs/x")


def test_an_evaluation_may_change_all_but_what_the_adapter_depends_on():
    old = Config()
    new = {"task.eval_tasks": "test.jsonl", "eval.tasks": 99, "sampling.slots": 8, "learning.learning_rate": 1.0}
    check_resume(old, with_values(old, new), "runs/x", trains=False)
    for key, value in {"model.path": "other", "lora.alpha": 8.0}.items():
        with pytest.raises(ConfigError, match=key):
            check_resume(old, with_values(old, {key: value}), "runs/x", trains=False)
