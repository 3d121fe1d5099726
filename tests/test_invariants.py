"""What must hold between the sampler and the learner: the same weights, the same buffers, the same log-probs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import Config, LearningConfig, LoraConfig, SamplingConfig
from jaxsearchrl.dry_run import dry_run_config
from jaxsearchrl.experiment import load_experiment
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import pack, row_from
from jaxsearchrl.models.architecture import Rope
from jaxsearchrl.models.decoder import build_model, init_lora
from jaxsearchrl.models.tiny import tiny_architecture
from jaxsearchrl.sampling.contract import SampleRequest
from jaxsearchrl.sampling.engine import Engine
from jaxsearchrl.telemetry.compilations import compilations
from jaxsearchrl.telemetry.progress import Progress
from jaxsearchrl.trajectory import Trajectory

POLICY_LOSS = policy_loss(LearningConfig())

VOCAB, STOPS, CHUNK = 59, range(8), 8
CONFIG = SamplingConfig(slots=3, capacity=96, extend_chunks=2, chunk_tokens=CHUNK, decode_steps=5, read_block=16)
PACK = {"pack_rows": 2, "pack_tokens": 96}


def lora_of(model, seed=0, scale=0.1):
    """An adapter that is not zero."""
    rng = np.random.default_rng(seed)
    return {n: v + jnp.asarray(rng.normal(size=v.shape) * scale, v.dtype) for n, v in init_lora(model, seed).items()}


@pytest.fixture(scope="module", params=["qwen2", "qwen3_moe", "qwen3_5_text", "gpt_oss"])
def model(request):
    sizes = {"vocab_size": 61, "d_model": 24, "heads": 6, "kv_heads": 2, "head_dim": 8, "mlp_dim": 32}
    own = {"rope": Rope(share=0.5)} if request.param == "qwen3_5_text" else {}
    return build_model(tiny_architecture(request.param, **sizes, **own), LoraConfig(rank=3))


@pytest.fixture(scope="module")
def base(model):
    """Weights in which the two ids above the tokenizer would often be the likeliest of all."""
    rng = np.random.default_rng(0)
    base = {n: jnp.asarray(rng.normal(size=s.shape) * 0.4, s.dtype) for n, s in model.specs.items()}
    head = "embed_tokens" if model.arch.tied else "lm_head"
    return base | {head: base[head].at[VOCAB:].multiply(20.0)}


@pytest.fixture(scope="module")
def engine(model, base):
    return Engine(model, base, lora_of(model), CONFIG, stop_ids=STOPS, vocab_size=VOCAB, seed=1)


def learner_of(model, base, temperature):
    return Learner(model, base, POLICY_LOSS, vocab_size=VOCAB, temperature=temperature)


def play(engine, prompts, group, turns, temperature):
    """Plays `group` tries of each prompt through the engine, more than it has slots; an observation after each turn."""
    trajectories, waiting, live = {}, [(p, g) for p in range(len(prompts)) for g in range(group)], {}

    def ask(uid):
        engine.submit(SampleRequest(uid, list(trajectories[uid].tokens), 7, temperature))

    while waiting or live:
        while waiting and engine.free_slots:
            uid, (prompt, _) = len(trajectories), waiting.pop(0)
            trajectories[uid], live[uid] = Trajectory(), (prompt, [])
            trajectories[uid].append_prompt(prompts[prompt])
            ask(uid)
        for result in engine.poll():
            trajectory, (prompt, done) = trajectories[result.uid], live[result.uid]
            trajectory.append_sampled(result.ids, result.logprobs, result.routes)
            done.append(result.reason)
            if len(done) == turns:
                engine.release(result.uid)
                del live[result.uid]
            else:
                # Observations shorter and longer than a chunk, of another length for each prompt and turn.
                trajectory.append_observation([8 + prompt] * (2 + 5 * len(done) + prompt))
                ask(result.uid)
    return [trajectories[uid] for uid in sorted(trajectories)]


PROMPTS = [[int(i) for i in np.random.default_rng(n).integers(8, VOCAB, n)] for n in (1, CHUNK - 1, CHUNK, 19)]


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_the_learner_scores_what_was_sampled_as_the_sampler_did(model, base, engine, temperature):
    lora = lora_of(model, seed=5)
    engine.renew(lora, seed=2)
    trajectories = play(engine, PROMPTS, group=3, turns=3, temperature=temperature)
    assert len({len(t) for t in trajectories}) > 3
    assert any(token in STOPS for t in trajectories for token in t.tokens)
    assert all(token < VOCAB for t in trajectories for token in t.tokens)
    rows = [row_from(uid, t, 1.0) for uid, t in enumerate(trajectories)]
    packing = pack(rows, **PACK)
    assert sum((batch.segments > 0).sum() for batch in packing.batches) < sum(map(len, rows))
    learner = learner_of(model, base, temperature)
    for batch in packing.batches:
        n = int(batch.n_actions)
        np.testing.assert_allclose(learner.logprobs(lora, batch)[:n], batch.old_logprobs[:n], atol=1e-4)
    _, stats = learner.gradient(lora, packing.batches, 1.0)
    means = stats.means()
    assert means["tokens"] == sum(t.action_tokens for t in trajectories)
    assert means["ratio"] == pytest.approx(1.0, abs=1e-4)
    assert means["max_gap"] < 1e-4
    if model.arch.experts:  # both sides chose the same experts for every token
        assert (stats.sums["routed"], stats.sums["rerouted"]) == (means["tokens"], 0)
    else:
        assert "routed" not in stats.sums


def test_every_token_that_is_routed_otherwise_is_counted(model, base, engine):
    """Routes of the sampler's that are changed, or not known, at some places; then another adapter's routers."""
    if not model.arch.experts:
        pytest.skip("no experts")
    lora = lora_of(model, seed=5)
    engine.renew(lora, seed=2)
    trajectories = play(engine, PROMPTS, group=3, turns=2, temperature=1.0)
    places = [(t, at) for t in trajectories for at, action in enumerate(t.action_mask) if action]
    order = np.random.default_rng(0).permutation(len(places))
    for number in order[:9]:
        t, at = places[number]
        t.routes[at] ^= 1 << int(number) % 32
    for number in order[9:14]:
        t, at = places[number]
        t.routes[at] = 0
    batches = pack([row_from(uid, t, 1.0) for uid, t in enumerate(trajectories)], **PACK).batches
    assert any(batch.segments.max() > 2 for batch in batches)
    learner = learner_of(model, base, 1.0)
    _, stats = learner.gradient(lora, batches, 1.0)
    assert (stats.sums["routed"], stats.sums["rerouted"]) == (len(places) - 5, 9)
    _, stats = learner.gradient(lora_of(model, seed=6), batches, 1.0)
    assert 9 < stats.sums["rerouted"] < len(places) - 5


def test_the_adapter_and_the_temperature_do_matter_to_a_logprob(model, base, engine):
    """So that the test above says something: neither may be forgotten on one of the two sides."""
    lora = lora_of(model, seed=5)
    engine.renew(lora, seed=2)
    (batch,) = pack([row_from(0, play(engine, PROMPTS[3:], 1, 2, 1.3)[0], 1.0)], **PACK).batches
    n = int(batch.n_actions)

    def gap(temperature, lora):
        logprobs = learner_of(model, base, temperature).logprobs(lora, batch)
        return np.abs(logprobs - batch.old_logprobs)[:n].max()

    assert gap(1.3, lora) < 1e-4
    assert gap(1.0, lora) > 1e-2
    assert gap(1.3, lora_of(model, seed=6)) > 1e-2


def test_a_step_of_sampling_and_learning_compiles_nothing_after_the_first(model, base, engine):
    learner = learner_of(model, base, 1.0)
    optimizer = make_optimizer(LearningConfig(learning_rate=1e-3), 10)
    update, lora = make_update(optimizer), lora_of(model)
    state, compiled = optimizer.init(lora), []
    for step, prompts in enumerate((PROMPTS[3:], PROMPTS[:1], PROMPTS)):
        before = compilations()
        engine.renew(lora, seed=step)
        trajectories = play(engine, prompts, group=2, turns=1 + step, temperature=1.0)
        rows = [row_from(uid, t, 0.5 - uid % 2) for uid, t in enumerate(trajectories)]
        grads, stats = learner.gradient(lora, pack(rows, **PACK).batches, len(rows) * 64.0)
        assert stats.means()["max_gap"] < 1e-4  # the sampler has the last update's adapter
        lora, state, done = update(grads, state, lora)
        assert float(done["updated"]) == 1
        compiled.append(compilations() - before)
    assert compiled[0] > 0
    assert compiled[1:] == [0, 0]


def test_experiment_sampler_and_learner_have_one_set_of_base_buffers(tmp_path):
    config = dry_run_config(Config(), tmp_path)
    experiment = load_experiment(config, Progress())
    lora = lora_of(experiment.model)
    sampling = replace(config.sampling, slots=1, capacity=64, extend_chunks=1, chunk_tokens=8, read_block=64)
    vocab = experiment.vocab_size
    engine = Engine(experiment.model, experiment.base, lora, sampling, stop_ids=[2], vocab_size=vocab, seed=0)
    learner = Learner(experiment.model, experiment.base, POLICY_LOSS, vocab_size=vocab, temperature=1.0)
    before = {name: value.unsafe_buffer_pointer() for name, value in experiment.base.items()}
    optimizer = make_optimizer(LearningConfig(), 10)
    engine.submit(SampleRequest(0, [5, 6, 7], 4, 1.0))
    while not (results := engine.poll()):
        pass
    trajectory = Trajectory()
    trajectory.append_prompt([5, 6, 7])
    trajectory.append_sampled(results[0].ids, results[0].logprobs)
    batches = pack([row_from(0, trajectory, 1.0)], pack_rows=1, pack_tokens=16).batches
    grads, _ = learner.gradient(lora, batches, 1.0)
    new, _, _ = make_update(optimizer)(grads, optimizer.init(lora), lora)
    engine.renew(new, 1)
    held = [*learner._top.values(), *(value for layer in learner._base for value in layer.values())]
    assert sorted(value.unsafe_buffer_pointer() for value in held) == sorted(before.values())
    assert {name: value.unsafe_buffer_pointer() for name, value in engine.base.items()} == before
    assert {name: value.unsafe_buffer_pointer() for name, value in experiment.base.items()} == before
    assert all(not value.is_deleted() for value in jax.tree.leaves(experiment.base))
    assert grads.keys() == experiment.model.lora_shapes.keys()
