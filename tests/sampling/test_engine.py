"""The engine against a plain loop of whole forward passes: same tokens, same log-probs, whoever shares the batch."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LoraConfig, SamplingConfig
from jaxsearchrl.models.architecture import Rope
from jaxsearchrl.models.decoder import build_model, forward, head_of, init_lora
from jaxsearchrl.models.routes import routed_on
from jaxsearchrl.models.state import KeyValues, Packed, is_bound
from jaxsearchrl.models.tiny import tiny_architecture
from jaxsearchrl.sampling.choose import choose
from jaxsearchrl.sampling.contract import SampleRequest
from jaxsearchrl.sampling.engine import Engine

CONFIG = SamplingConfig(slots=4, capacity=96, extend_chunks=2, chunk_tokens=8, decode_steps=5, read_block=16)
VOCAB, STOP, SEED = 59, 7, 11  # two padding rows in the vocabulary
SIZES = {"vocab_size": 61, "d_model": 24, "heads": 6, "kv_heads": 2, "head_dim": 4, "mlp_dim": 32}
OWN = {"qwen3_5_text": {"rope": Rope(share=0.5)}, "gpt_oss": {"window": 11, "layers": 3, "tied": True}}


class World:
    """A model with random weights, its engine, and the same by whole forward passes."""

    def __init__(self, family, **more):
        arch = tiny_architecture(family, **SIZES, **OWN.get(family, {}), **more)
        self.bound = is_bound(arch)
        self.model = build_model(arch, LoraConfig(rank=3))
        rng = np.random.default_rng(0)
        self.base = {n: jnp.asarray(rng.normal(size=s.shape) * 0.4, s.dtype) for n, s in self.model.specs.items()}
        lora = init_lora(self.model, 0)
        self.lora = {n: v + jnp.asarray(rng.normal(size=v.shape) * 0.1, v.dtype) for n, v in lora.items()}

        @jax.jit
        def hidden(tokens):
            state = Packed(jnp.arange(96)[None], jnp.ones((1, 96), jnp.int32))
            return forward(self.model, self.base, self.lora, tokens[None], state)[0][0]

        self.hidden = hidden

    def make_engine(self, config=CONFIG, stops=(STOP,)):
        return Engine(self.model, self.base, self.lora, config, stop_ids=stops, vocab_size=VOCAB, seed=SEED)

    def renew(self, engine):
        engine.renew(self.lora, SEED)

    def reference(self, uid, tokens, limit, temperature, stops=(STOP,)):
        """Samples one turn by whole forward passes."""
        tokens, ids, logprobs = list(tokens), [], []
        key = jax.random.fold_in(jax.random.key(SEED), uid)
        while len(ids) < limit and not (ids and ids[-1] in stops):
            padded = np.zeros(96, np.int32)
            padded[: len(tokens)] = tokens
            logits = self.hidden(jnp.asarray(padded))[len(tokens) - 1] @ head_of(self.base).T
            uniform = jax.random.uniform(jax.random.fold_in(key, len(tokens)))
            choice, logprob = choose(logits[None], uniform[None], jnp.asarray([temperature]), VOCAB)
            ids.append(int(choice[0]))
            logprobs.append(float(logprob[0]))
            tokens.append(ids[-1])
        return ids, logprobs


@pytest.fixture(scope="module", params=["llama", "qwen3_5_text", "gpt_oss"])
def world(request):
    return World(request.param)


@pytest.fixture(scope="module")
def engine(world):
    return world.make_engine()


@pytest.fixture(scope="module")
def unstopped(world):
    """An engine without stop ids."""
    return world.make_engine(stops=())


@pytest.fixture(autouse=True)
def _renewed(request):
    for name in {"engine", "unstopped"} & set(request.fixturenames):
        request.getfixturevalue("world").renew(request.getfixturevalue(name))


@jax.jit
def _choose(logits, uniforms):
    return choose(logits, uniforms, jnp.ones(len(uniforms)), logits.shape[1])


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
def test_a_turn_equals_whole_forward_passes(world, engine, temperature):
    result = run(engine, request(3, PROMPT, temperature=temperature))[3]
    ids, logprobs = world.reference(3, PROMPT, 12, temperature)
    assert list(result.ids) == ids
    chex.assert_trees_all_close(np.array(result.logprobs), np.array(logprobs), atol=1e-5)
    assert result.reason == ("stop" if ids[-1] == STOP else "length")


def test_a_cache_in_bfloat16_takes_half_and_rounds_what_later_tokens_see(world):
    engine = world.make_engine(replace(CONFIG, cache_dtype="bfloat16"))
    for cache in engine._cache.layers:
        if isinstance(cache, KeyValues):
            chex.assert_type([cache.keys, cache.values], jnp.bfloat16)
        else:
            chex.assert_type([cache.inputs, cache.memory], jnp.float32)  # errors would go from token to token
    result = run(engine, request(3, PROMPT))[3]
    logprobs, tokens = [], list(PROMPT)
    for token in result.ids:  # of the same tokens, by whole forward passes
        logits = (
            world.hidden(jnp.asarray(np.pad(tokens, (0, 96 - len(tokens)))))[len(tokens) - 1] @ head_of(world.base).T
        )
        logprobs.append(float(jax.nn.log_softmax(logits[:VOCAB])[token]))
        tokens.append(token)
    gap = np.abs(np.array(result.logprobs) - logprobs)
    assert 1e-4 < gap.max() < 0.2


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 10, 16, 17, 18, 33])
def test_prompts_shorter_equal_and_longer_than_a_chunk(world, engine, length):
    prompt = (PROMPT * 2)[:length]
    assert list(run(engine, request(1, prompt, limit=4))[1].ids) == world.reference(1, prompt, 4, 1.0)[0]


def test_turns_extend_and_each_token_is_computed_once(world, engine):
    before = engine.counters.prompt_tokens + engine.counters.observation_tokens
    trajectory = {uid: list(PROMPT) for uid in range(4)}
    sampled = 0
    for turn in range(3):
        wanted = {uid: world.reference(uid, t, 6, 1.0)[0] for uid, t in trajectory.items()}
        requests = [SampleRequest(uid, list(t), 6, 1.0) for uid, t in trajectory.items()]
        for uid, result in run(engine, *requests).items():
            assert list(result.ids) == wanted[uid]
            trajectory[uid] += [*result.ids, *[9 + turn] * (3 + uid)]
            sampled += len(result.ids)
    observations = 2 * sum(3 + uid for uid in range(4))
    # One prompt for the group of four, each observation once; both less their pending token, which decode takes in; the
    # last sampled token of a turn rides along.
    assert engine.counters.prompt_tokens + engine.counters.observation_tokens - before == len(PROMPT) - 1 + observations


def test_fork_equals_separate_prefill(world, engine):
    requests = [request(uid, PROMPT) for uid in range(3)]
    requests.append(request(3, [*PROMPT[:11], 20, 21, 22]))  # has eleven tokens in common with the others
    before = engine.counters.prompt_tokens
    shared = run(engine, *requests)
    assert engine.counters.prompt_tokens - before == len(PROMPT) - 1 + (13 if world.bound else 2)
    for one in requests:
        world.renew(engine)
        assert run(engine, one)[one.uid] == shared[one.uid]  # bit for bit


def test_alone_equals_any_batch(world, engine):
    alone = run(engine, request(2, PROMPT))[2]
    world.renew(engine)
    others = [request(uid, PROMPT[: 3 + uid], temperature=0.5) for uid in (0, 1, 3)]
    together = run(engine, *others[:2], request(2, PROMPT), others[2])[2]
    assert alone.ids == together.ids
    if world.bound:  # it may go on from another's end, which cuts its prompt elsewhere
        chex.assert_trees_all_close(np.array(alone.logprobs), np.array(together.logprobs), atol=1e-5)
    else:
        assert alone == together


def test_the_cut_into_dispatches_changes_nothing(world, engine):
    other = world.make_engine(
        SamplingConfig(slots=4, capacity=96, extend_chunks=3, chunk_tokens=8, decode_steps=16, read_block=16)
    )
    assert list(run(engine, request(2, PROMPT))[2].ids) == list(run(other, request(2, PROMPT))[2].ids)


def test_a_released_slot_serves_its_group_again(world, engine):
    run(engine, *(request(uid, PROMPT) for uid in range(4)))
    for uid in range(4):
        engine.release(uid)
    before = engine.counters.prompt_tokens
    assert list(run(engine, request(9, PROMPT))[9].ids) == world.reference(9, PROMPT, 12, 1.0)[0]
    assert engine.counters.prompt_tokens == before


def test_refill_with_another_prompt(world, engine):
    run(engine, *(request(uid, PROMPT) for uid in range(4)))
    assert engine.free_slots == 0
    with pytest.raises(ValueError, match="no free slot"):
        engine.submit(request(8, PROMPT[:5]))
    engine.release(1)
    assert list(run(engine, request(8, PROMPT[:5]))[8].ids) == world.reference(8, PROMPT[:5], 12, 1.0)[0]


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


def test_stop_strings_roll_back(world, unstopped):
    """A stop noticed some tokens late: what follows is dropped, and the next turn goes on as if it had never been."""
    ids, _ = world.reference(4, PROMPT, 12, 1.0, stops=())
    result = run(unstopped, request(4, PROMPT, find_stop=lambda got: 3 if len(got) >= 3 else None))[4]
    assert (list(result.ids), result.reason) == (ids[:3], "stop_string")
    following = [*PROMPT, *ids[:3], 9, 9, 12]
    after = run(unstopped, SampleRequest(4, following, 5, 1.0))[4]
    assert list(after.ids) == world.reference(4, following, 5, 1.0, stops=())[0]


def test_a_refused_trajectory_takes_no_slot(world, engine):
    for tokens, limit in (([], 3), (PROMPT, 0), (PROMPT * 6, 1)):
        with pytest.raises(ValueError, match="trajectory 5"):
            engine.submit(request(5, tokens, limit=limit))
        assert engine.free_slots == CONFIG.slots
    assert list(run(engine, request(5, PROMPT))[5].ids) == world.reference(5, PROMPT, 12, 1.0)[0]


@pytest.mark.parametrize("spare", [1, 2, 16])
def test_up_to_the_last_position(world, engine, spare):
    prompt = (PROMPT * 6)[: 96 - spare]
    result = run(engine, request(1, prompt, limit=spare))[1]
    assert list(result.ids) == world.reference(1, prompt, spare, 1.0)[0]
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


@pytest.mark.parametrize("kept", [1, 2, 4, 5])
def test_a_stop_noticed_late_leaves_others_alone(world, unstopped, kept):
    """Wherever in a dispatch the stop ends, and while another trajectory goes on; several turns follow."""
    engine, before = unstopped, unstopped.counters.rewound_tokens
    others = {7: list(PROMPT[:9])}
    tokens = list(PROMPT)
    for turn in range(3):
        find = lambda got: kept if len(got) >= kept else None  # noqa: E731
        expected = world.reference(4, tokens, 12, 1.0, stops=())[0][:kept]
        wanted = world.reference(7, others[7], 8, 1.0, stops=())[0]
        results = run(engine, request(4, list(tokens), find_stop=find), request(7, list(others[7]), limit=8))
        assert list(results[4].ids) == expected
        assert list(results[7].ids) == wanted
        tokens += [*expected, 9 + turn, 10]
        others[7] += [*wanted, 12]
    assert (engine.counters.rewound_tokens > before) == (world.bound and kept < CONFIG.decode_steps)


def test_a_group_whose_first_tries_have_moved_on_still_computes_its_prompt_once(world, engine):
    before = engine.counters.prompt_tokens
    first = run(engine, *(request(uid, PROMPT, limit=9) for uid in range(4)))
    engine.release(2)
    again = [*PROMPT, *first[0].ids, 9, 9]
    run(engine, SampleRequest(0, again, 6, 1.0))
    late = run(engine, request(8, PROMPT))[8]
    assert list(late.ids) == world.reference(8, PROMPT, 12, 1.0)[0]
    engine.release(0)
    assert list(run(engine, request(9, PROMPT))[9].ids) == world.reference(9, PROMPT, 12, 1.0)[0]
    assert engine.counters.prompt_tokens - before == len(PROMPT) - 1


def test_a_slot_used_before_begins_from_nothing(world, engine):
    for uid in range(4):
        run(engine, request(uid, PROMPT[uid:]))
        engine.release(uid)
    for uid, prompt in ((5, [11]), (6, [12, 13]), (7, PROMPT[::-1])):
        assert list(run(engine, request(uid, prompt))[uid].ids) == world.reference(uid, prompt, 12, 1.0)[0]


# -------------------------------------------------------------------------------------------------------------- experts


def test_without_experts_nobody_speaks_of_them(world, engine):
    result = run(engine, request(0, PROMPT))[0]
    experts = world.model.arch.experts is not None
    assert (len(result.routes) == len(result.ids), engine.load is not None) == (experts, experts)


class Noting(Packed):
    """Keeps what each layer's router chose."""

    noted: dict

    def routed(self, layer, ids):
        self.noted[layer] = ids[0]
        return self


@pytest.fixture(scope="module")
def sparse():
    """Three layers, the first without experts; `chosen` gives the other two's choices in a whole forward pass."""
    world = World("qwen3_moe", layers=3)

    @jax.jit
    def chosen(tokens):
        state = Noting(jnp.arange(96)[None], jnp.ones((1, 96), jnp.int32))
        object.__setattr__(state, "noted", {})
        _, state = forward(world.model, world.base, world.lora, tokens[None], state)
        return [state.noted[layer] for layer in sorted(state.noted)]

    def of(tokens, start, stop):
        """The choices at the positions that predicted tokens[start:stop]: [layers, tokens, chosen]."""
        padded = np.zeros(96, np.int32)
        padded[: len(tokens)] = tokens
        return np.stack(chosen(jnp.asarray(padded)))[:, start - 1 : stop - 1]

    world.chosen = of
    return world


@pytest.fixture(scope="module")
def sparse_engine(sparse):
    return sparse.make_engine(stops=())


def routes_of(chosen):
    """[layers, tokens, chosen] -> a route for each token."""
    routes = jnp.zeros(chosen.shape[1], jnp.uint32)
    for ids in chosen:
        routes = routed_on(routes, jnp.asarray(ids))
    return tuple(int(route) for route in routes)


def test_routes_and_load_are_those_of_whole_forward_passes(sparse, sparse_engine):
    """Over two turns of several trajectories that end at different times; padding and frozen rows count nothing."""
    engine = sparse_engine
    sparse.renew(engine)
    tokens, chosen = {uid: PROMPT[: 7 + 4 * uid] for uid in range(3)}, []
    for turn in range(2):
        results = run(engine, *(request(uid, list(t), limit=4 + 3 * uid) for uid, t in tokens.items()))
        for uid, result in results.items():
            start = len(tokens[uid])
            tokens[uid] = [*tokens[uid], *result.ids, 9 + turn, 10]
            chosen.append(sparse.chosen(tokens[uid], start, start + len(result.ids)))
            assert result.routes == routes_of(chosen[-1])
    counts = [np.bincount(layer.ravel(), minlength=5) for layer in np.concatenate(chosen, axis=1)]
    assert engine.load.tolist() == np.stack(counts).tolist()
    assert engine.load.sum() == 2 * 2 * sum(2 * (4 + 3 * uid) for uid in range(3))
    sparse.renew(engine)
    assert engine.load.tolist() == [[0] * 5] * 2


def test_a_late_stop_string_drops_routes_with_their_tokens(sparse, sparse_engine):
    engine = sparse_engine
    sparse.renew(engine)
    result = run(engine, request(4, PROMPT, find_stop=lambda got: 8 if len(got) >= 8 else None))[4]
    tokens = [*PROMPT, *result.ids]
    assert len(result.ids) == 8
    assert result.routes == routes_of(sparse.chosen(tokens, len(PROMPT), len(tokens)))
    following = [*tokens, 9, 9, 12]
    after = run(engine, SampleRequest(4, following, 5, 1.0))[4]
    tokens = [*following, *after.ids]
    assert after.routes == routes_of(sparse.chosen(tokens, len(following), len(tokens)))
