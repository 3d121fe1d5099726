"""The engine against a plain loop of whole forward passes: same tokens, same log-probs, whoever shares the batch."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LoraConfig, SamplingConfig
from jaxsearchrl.models.architecture import Architecture, Rope
from jaxsearchrl.models.decoder import build_model, forward, head_of, init_lora
from jaxsearchrl.models.state import Packed
from jaxsearchrl.sampling.choose import choose
from jaxsearchrl.sampling.contract import SampleRequest
from jaxsearchrl.sampling.engine import Engine

ARCH = Architecture("llama", 61, 24, 2, 6, 2, 4, 32, 1e-5, True, False, False, False, 128, Rope())
CONFIG = SamplingConfig(slots=4, capacity=96, extend_chunks=2, chunk_tokens=8, decode_steps=5, read_block=16)
VOCAB, STOP, SEED = 59, 7, 11  # two padding rows in the vocabulary


def make_weights():
    model = build_model(ARCH, LoraConfig(rank=3))
    rng = np.random.default_rng(0)
    base = {n: jnp.asarray(rng.normal(size=s.shape) * 0.4, s.dtype) for n, s in model.specs.items()}
    lora = {n: v + jnp.asarray(rng.normal(size=v.shape) * 0.1, v.dtype) for n, v in init_lora(model, 0).items()}
    return model, base, lora


MODEL, BASE, LORA = make_weights()


def make_engine(config=CONFIG, stops=(STOP,)):
    return Engine(MODEL, BASE, LORA, config, stop_ids=stops, vocab_size=VOCAB, seed=SEED)


@pytest.fixture(scope="module")
def engine():
    return make_engine()


@pytest.fixture(autouse=True)
def _renewed(request):
    if "engine" in request.fixturenames:
        request.getfixturevalue("engine").renew(LORA, SEED)


@jax.jit
def _hidden(tokens, positions):
    return forward(MODEL, BASE, LORA, tokens[None], Packed(positions[None], jnp.ones((1, 96), jnp.int32)))[0][0]


@jax.jit
def _choose(logits, uniforms):
    return choose(logits, uniforms, jnp.ones(len(uniforms)), logits.shape[1])


def reference(uid, tokens, limit, temperature, stops=(STOP,)):
    """Samples one turn by whole forward passes."""
    tokens, ids, logprobs = list(tokens), [], []
    key = jax.random.fold_in(jax.random.key(SEED), uid)
    while len(ids) < limit and not (ids and ids[-1] in stops):
        padded = np.zeros(96, np.int32)
        padded[: len(tokens)] = tokens
        logits = _hidden(jnp.asarray(padded), jnp.arange(96))[len(tokens) - 1] @ head_of(BASE).T
        uniform = jax.random.uniform(jax.random.fold_in(key, len(tokens)))
        choice, logprob = choose(logits[None], uniform[None], jnp.asarray([temperature]), VOCAB)
        ids.append(int(choice[0]))
        logprobs.append(float(logprob[0]))
        tokens.append(ids[-1])
    return ids, logprobs


def request(uid, tokens, limit=12, temperature=1.0, **more):
    return SampleRequest(uid, tokens, limit, temperature, **more)


def run(engine, *requests):
    for r in requests:
        engine.submit(r)
    results = {}
    while len(results) < len(requests):
        results.update({r.uid: r for r in engine.poll()})
    return results


PROMPT = [int(i) for i in np.random.default_rng(5).integers(8, 59, 19)]


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.3])
def test_a_turn_equals_whole_forward_passes(engine, temperature):
    result = run(engine, request(3, PROMPT, temperature=temperature))[3]
    ids, logprobs = reference(3, PROMPT, 12, temperature)
    assert list(result.ids) == ids
    chex.assert_trees_all_close(np.array(result.logprobs), np.array(logprobs), atol=1e-5)
    assert result.reason == ("stop" if ids[-1] == STOP else "length")


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 10, 16, 17, 18, 33])
def test_prompts_shorter_equal_and_longer_than_a_chunk(engine, length):
    prompt = (PROMPT * 2)[:length]
    assert list(run(engine, request(1, prompt, limit=4))[1].ids) == reference(1, prompt, 4, 1.0)[0]


def test_turns_extend_and_each_token_is_computed_once(engine):
    before = engine.counters.prompt_tokens + engine.counters.observation_tokens
    trajectory = {uid: list(PROMPT) for uid in range(4)}
    sampled = 0
    for turn in range(3):
        wanted = {uid: reference(uid, t, 6, 1.0)[0] for uid, t in trajectory.items()}
        requests = [SampleRequest(uid, list(t), 6, 1.0) for uid, t in trajectory.items()]
        for uid, result in run(engine, *requests).items():
            assert list(result.ids) == wanted[uid]
            trajectory[uid] += [*result.ids, *[9 + turn] * (3 + uid)]
            sampled += len(result.ids)
    observations = 2 * sum(3 + uid for uid in range(4))
    # One prompt for the group of four, each observation once; both less their pending token, which decode takes in; the
    # last sampled token of a turn rides along.
    assert engine.counters.prompt_tokens + engine.counters.observation_tokens - before == len(PROMPT) - 1 + observations


def test_fork_equals_separate_prefill(engine):
    requests = [request(uid, PROMPT) for uid in range(3)]
    requests.append(request(3, [*PROMPT[:11], 20, 21, 22]))  # has eleven tokens in common with the others
    before = engine.counters.prompt_tokens
    shared = run(engine, *requests)
    assert engine.counters.prompt_tokens - before == len(PROMPT) - 1 + 2
    for one in requests:
        engine.renew(LORA, SEED)
        assert run(engine, one)[one.uid] == shared[one.uid]  # bit for bit


def test_alone_equals_any_batch(engine):
    alone = run(engine, request(2, PROMPT))[2]
    engine.renew(LORA, SEED)
    others = [request(uid, PROMPT[: 3 + uid], temperature=0.5) for uid in (0, 1, 3)]
    together = run(engine, *others[:2], request(2, PROMPT), others[2])[2]
    assert alone == together


def test_the_cut_into_dispatches_changes_nothing(engine):
    other = make_engine(
        SamplingConfig(slots=4, capacity=96, extend_chunks=3, chunk_tokens=8, decode_steps=16, read_block=16)
    )
    assert list(run(engine, request(2, PROMPT))[2].ids) == list(run(other, request(2, PROMPT))[2].ids)


def test_a_released_slot_serves_its_group_again(engine):
    run(engine, *(request(uid, PROMPT) for uid in range(4)))
    for uid in range(4):
        engine.release(uid)
    before = engine.counters.prompt_tokens
    assert list(run(engine, request(9, PROMPT))[9].ids) == reference(9, PROMPT, 12, 1.0)[0]
    assert engine.counters.prompt_tokens == before


def test_refill_with_another_prompt(engine):
    run(engine, *(request(uid, PROMPT) for uid in range(4)))
    assert engine.free_slots == 0
    with pytest.raises(ValueError, match="no free slot"):
        engine.submit(request(8, PROMPT[:5]))
    engine.release(1)
    assert list(run(engine, request(8, PROMPT[:5]))[8].ids) == reference(8, PROMPT[:5], 12, 1.0)[0]


def test_a_changed_past_is_refused(engine):
    result = run(engine, request(0, PROMPT))[0]
    for past in (PROMPT, [*PROMPT[:-1], 60, *result.ids, 1], [*PROMPT, *result.ids[:-1], 60, 1]):
        if past[: len(PROMPT) + len(result.ids) - 1] == [*PROMPT, *result.ids[:-1]]:
            continue
        with pytest.raises(ValueError, match="do not continue"):
            engine.submit(SampleRequest(0, past, 3, 1.0))


def test_padding_ids_are_never_sampled():
    ids, _ = choose(jnp.zeros((64, 61)), jnp.linspace(0, 0.999999, 64), jnp.ones(64), VOCAB)
    assert int(ids.max()) == VOCAB - 1


def test_ids_without_mass_are_never_sampled():
    """Not even at a boundary between ids, where a parallel running sum may grow by a last bit without a mass."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        alive = rng.random((64, 2048)) < (0.5 if seed % 2 else 0.02)
        logits = np.where(alive, rng.normal(size=alive.shape) * 3, -1e4).astype(np.float32)
        mass = np.exp(logits - logits.max(-1, keepdims=True)).astype(np.float64)
        boundaries = (mass.cumsum(-1) / mass.sum(-1, keepdims=True))[np.arange(64), rng.integers(0, 2048, 64)]
        for steps in (-2, -1, 0, 1, 2):
            uniforms = np.clip(boundaries + steps * 2.0**-24, 0, 1 - 2.0**-24).astype(np.float32)
            ids, logprobs = _choose(logits, uniforms)
            assert alive[np.arange(64), ids].all()
            assert np.asarray(logprobs).min() > -1e3


def test_stop_strings_roll_back(engine):
    """A stop noticed some tokens late: what follows is dropped, and the next turn goes on as if it had never been."""
    ids, _ = reference(4, PROMPT, 12, 1.0, stops=())
    unstopped = make_engine(stops=())
    result = run(unstopped, request(4, PROMPT, find_stop=lambda got: 3 if len(got) >= 3 else None))[4]
    assert (list(result.ids), result.reason) == (ids[:3], "stop_string")
    following = [*PROMPT, *ids[:3], 9, 9, 12]
    after = run(unstopped, SampleRequest(4, following, 5, 1.0))[4]
    assert list(after.ids) == reference(4, following, 5, 1.0, stops=())[0]


def test_a_refused_trajectory_takes_no_slot(engine):
    for tokens, limit in (([], 3), (PROMPT, 0), (PROMPT * 6, 1)):
        with pytest.raises(ValueError, match="trajectory 5"):
            engine.submit(request(5, tokens, limit=limit))
        assert engine.free_slots == CONFIG.slots
    assert list(run(engine, request(5, PROMPT))[5].ids) == reference(5, PROMPT, 12, 1.0)[0]


@pytest.mark.parametrize("spare", [1, 2, 16])
def test_up_to_the_last_position(engine, spare):
    prompt = (PROMPT * 6)[: 96 - spare]
    result = run(engine, request(1, prompt, limit=spare))[1]
    assert list(result.ids) == reference(1, prompt, spare, 1.0)[0]
    with pytest.raises(ValueError, match="capacity"):
        engine.submit(request(2, prompt, limit=spare + 1))


def test_no_compilation_after_construction(engine):
    run(engine, request(0, PROMPT, limit=3))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, _, **kw: compiled.append(name) if name.endswith("backend_compile_duration") else None
    )
    run(engine, *(request(uid, (PROMPT * 3)[: 5 + 9 * uid], limit=2 + uid) for uid in (1, 2, 3)))
    assert compiled == []
