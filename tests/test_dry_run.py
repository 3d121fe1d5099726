"""Any experiment made tiny: what it writes is sound, and what it leaves alone stays."""

import json
from pathlib import Path

import pytest

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import WRAPPING_TOKENS, ChatConfig, Config, RetrieverConfig, SearchR1Config
from jaxsearchrl.config_checks import validate
from jaxsearchrl.config_tree import diff, with_values
from jaxsearchrl.dry_run import dry_run_config
from jaxsearchrl.experiment import chat_format, load_experiment
from jaxsearchrl.messages import ToolCall
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.tiny import write_tiny_checkpoint
from jaxsearchrl.rollouts.play import play
from jaxsearchrl.rollouts.scripted import scripted_rollout
from jaxsearchrl.search.index import open_or_build
from jaxsearchrl.tasks.curated.data import load_tasks
from jaxsearchrl.tasks.curated.environment import CuratedEnvironment
from jaxsearchrl.tasks.curated.rule import RuleAgent
from jaxsearchrl.tasks.curated.tools import check_arguments, tool_specs
from jaxsearchrl.telemetry.progress import Progress

REQUIRED = ("model.path", "task.corpus", "task.train_tasks", "task.eval_tasks")


def documents_of(config):
    lines = Path(config.task.corpus).read_text(encoding="utf-8").splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def test_the_result_is_valid_and_keeps_the_other_settings(tmp_path):
    before = with_values(
        Config(),
        {"model.path": "demo", "learning.b1": 0.5, "task.beta": 1.0, "lora.rank": 3, "sampling.temperature": 0.7},
    )
    after = dry_run_config(before, tmp_path)
    validate(after, required=REQUIRED)
    assert (after.train.steps, after.train.groups_per_step, after.train.group_size, after.eval.tasks) == (2, 2, 4, 2)
    for key, _, _ in diff(before, after):
        assert key.startswith(
            ("model.", "task.", "sampling.", "learning.pack", "train.", "eval.", "warm_", "checkpoint.")
        )
    assert (after.learning.b1, after.task.beta, after.lora.rank, after.sampling.temperature) == (0.5, 1.0, 3, 0.7)


def test_an_engine_elsewhere_is_left_alone(tmp_path):
    elsewhere = RetrieverConfig(kind="search_r1", url="http://10.0.0.7:8000/retrieve", cache_file="searches")
    task = SearchR1Config(retriever=elsewhere, search_k=5)
    after = dry_run_config(Config(task=task, chat=ChatConfig(format="search_r1")), tmp_path)
    validate(after, required=REQUIRED)
    assert (after.task.retriever, after.task.search_k) == (RetrieverConfig(), 5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eval.every": 0, "checkpoint.keep_best": 0},
        {"learning.warmup_steps": 10, "learning.schedule": "cosine"},
        {"warm_start.trajectories": 100, "warm_start.records": "old_run"},
        {"sampling.capacity": 32768, "learning.pack_tokens": 65536, "task.max_observation_tokens": 8192},
        {
            "sampling.capacity": 192,
            "sampling.read_block": 64,
            "sampling.max_turn_tokens": 8,
            "task.max_observation_tokens": 8,
        },
        {"telemetry.wandb_project": "mine"},
        {"mesh.data": 8, "learning.pack_rows": 8},
    ],
)
def test_any_valid_config_stays_valid(tmp_path, changes):
    before = with_values(Config(), changes)
    validate(before, check_files=False)
    after = dry_run_config(before, tmp_path)
    validate(after, required=REQUIRED)
    assert after.telemetry.wandb_project == ""


def test_the_same_folder_and_config_give_the_same_files(tmp_path):
    def contents(folder):
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    first = dry_run_config(Config(), tmp_path / "a")
    before = contents(tmp_path / "a")
    stamp = (tmp_path / "a" / "corpus.jsonl").stat().st_mtime_ns
    assert dry_run_config(Config(), tmp_path / "a") == first
    assert contents(tmp_path / "a") == before
    assert (tmp_path / "a" / "corpus.jsonl").stat().st_mtime_ns == stamp
    dry_run_config(Config(), tmp_path / "b")
    assert contents(tmp_path / "b") == before


def test_every_gold_document_exists_and_states_what_is_asked(tmp_path):
    config = dry_run_config(Config(), tmp_path)
    documents = documents_of(config)
    train, evaluation = load_tasks(config.task.train_tasks), load_tasks(config.task.eval_tasks)
    assert len(documents) == 36
    for task in (*train, *evaluation):
        assert task.query.split("\n") == [fact.fact for fact in task.facts]
        assert len(task.facts) in (2, 3)
        for fact in task.facts:
            (gold,) = fact.chunk_ids
            assert documents[gold]["title"] in fact.fact

    def gold_of(tasks):
        return {gold for task in tasks for fact in task.facts for gold in fact.chunk_ids}

    assert not gold_of(train) & gold_of(evaluation)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_the_model_is_of_the_experiments_family(tmp_path, family):
    write_tiny_checkpoint(tmp_path / "theirs", family, vocab_size=64)
    config = dry_run_config(with_values(Config(), {"model.path": str(tmp_path / "theirs")}), tmp_path / "dry")
    architecture = open_checkpoint(config.model.path).architecture
    assert architecture.family == family
    tokenizer = load_tokenizer(config.model.path)
    assert architecture.vocab_size == len(tokenizer)
    assert architecture.eos_ids == (tokenizer.eos_token_id,)
    assert architecture.max_positions == config.sampling.capacity
    experiment = load_experiment(config, Progress())
    assert experiment.model.specs.keys() == experiment.base.keys()


def test_an_absent_model_is_said_to_be_replaced(tmp_path, capsys):
    dry_run_config(with_values(Config(), {"model.path": str(tmp_path / "nowhere")}), tmp_path / "dry")
    assert "a tiny random llama" in capsys.readouterr().out


def test_the_tokenizer_gives_back_any_text(tmp_path):
    tokenizer = load_tokenizer(dry_run_config(Config(), tmp_path).model.path)
    for text in ("Arbel was founded in 1583.", " two  spaces , here", "é 漢字 🙂\n\x00"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_ids_to_tokens([1, 2]) == ["<|im_start|>", "<|im_end|>"]


@pytest.fixture(params=["chatml", "qwen_xml", "harmony"])
def tiny(request, tmp_path):
    """A configuration with each format for calls, and the format."""
    config = dry_run_config(with_values(Config(), {"chat.format": request.param}), tmp_path)
    return config, chat_format(config.chat, load_tokenizer(config.model.path))


def test_an_episode_fits_the_sampler_and_can_earn_a_reward(tiny):
    config, chat = tiny
    index = open_or_build(config.task.corpus, config.task.index_dir)
    rewards = []
    for task in load_tasks(config.task.train_tasks):
        environment = CuratedEnvironment(task, index, index, config.task, chat.count_tokens)
        prompt = len(chat.prompt_ids(environment.reset(), environment.tools))
        play(RuleAgent(), environment)
        rewards.append(environment.score().reward)
        turn = config.sampling.max_turn_tokens + config.task.max_observation_tokens + WRAPPING_TOKENS
        assert prompt + config.task.max_turns * turn < config.sampling.capacity
    assert max(rewards) > 0


def test_a_warm_start_imitates_what_the_rule_says(tiny):
    """Each turn of its rows, read as the policy's turns are, calls what the records say."""
    config, chat = tiny
    index = open_or_build(config.task.corpus, config.task.index_dir)
    task = load_tasks(config.task.train_tasks)[0]
    environment = CuratedEnvironment(task, index, index, config.task, chat.count_tokens)
    rollout = scripted_rollout(RuleAgent(), environment, chat, config.sampling)
    assert rollout.turns
    for turn in rollout.turns:
        ids = rollout.trajectory.tokens[slice(*turn.tokens)]
        assert all(rollout.trajectory.action_mask[slice(*turn.tokens)])
        read = chat.parse(ids, stopped=True, tools=environment.tools)
        assert [(call.name, call.arguments) for call in read.calls] == [(c.name, c.arguments) for c in turn.calls]
        assert len(read.calls) == 1 or not chat.one_call_a_turn


def test_a_random_model_says_whole_calls_by_chance(tiny):
    """But in harmony, where a call is several control tokens; there a warm start has something to learn from."""
    config, chat = tiny
    added = load_tokenizer(config.model.path).added_tokens_decoder
    turns = [i for i, token in added.items() if not token.special]
    assert bool(turns) == (config.chat.format != "harmony")
    assert config.warm_start.trajectories == (2 if config.chat.format == "harmony" else 0)
    specs = list(tool_specs(config.task).values())
    for i in turns:
        [call] = chat.parse([i, chat.stop_ids[0]], stopped=True, tools=specs).calls
        assert isinstance(call, ToolCall)
        check_arguments(next(spec for spec in specs if spec.name == call.name), call.arguments)
