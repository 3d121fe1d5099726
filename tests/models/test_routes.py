"""A route says which experts a token was given, layer by layer, whatever the order within a layer."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.models.routes import mixed, routed_on
from jaxsearchrl.models.state import Packed, Slots

E, CHOSEN, LAYERS = 512, 8, 3
LAYER = st.lists(st.integers(0, E - 1), min_size=CHOSEN, max_size=CHOSEN, unique=True)
CHOICES = st.lists(LAYER, min_size=LAYERS, max_size=LAYERS)


@jax.jit
def route(choices):
    """[layers, chosen] -> []."""
    total = jnp.zeros((), jnp.uint32)
    for ids in choices:
        total = routed_on(total, ids)
    return total


def of(choices):
    return int(route(jnp.asarray(choices)))


def test_the_mixer_is_the_published_one():
    """Of 1 it is 0x514E28B7, of 2 it is 0x30F4C306; 0 stays 0."""
    assert [int(x) for x in mixed(jnp.arange(3, dtype=jnp.uint32))] == [0, 0x514E28B7, 0x30F4C306]


def test_one_layer_by_hand():
    """Experts 1 and 0, from no layer before: mixed(0 + mixed(2) + mixed(1))."""
    total = (0x514E28B7 + 0x30F4C306) % 2**32
    assert int(routed_on(jnp.uint32(0), jnp.asarray([1, 0]))) == int(mixed(jnp.uint32(total)))


@given(CHOICES, st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_order_within_a_layer_does_not_matter(choices, random):
    assert of([random.sample(ids, len(ids)) for ids in choices]) == of(choices)


@given(CHOICES, st.integers(0, LAYERS - 1), st.integers(0, CHOSEN - 1), st.integers(0, E - 1))
@settings(max_examples=200, deadline=None)
def test_another_expert_anywhere_is_another_route(choices, layer, place, other):
    changed = [list(ids) for ids in choices]
    if other in changed[layer]:
        return
    changed[layer][place] = other
    assert of(changed) != of(choices)


def test_layers_do_not_cancel():
    """The same exchange in two layers, two layers that changed places, one more layer of the same choice."""
    a, b, c = [0, 1], [0, 2], [3, 4]
    routes = [of(choices) for choices in ([a, a], [b, b], [a, b], [b, a], [a, c], [c, a], [a, a, a], [a])]
    assert len(set(routes)) == len(routes)


def test_routes_of_random_choices_are_all_different():
    rng = np.random.default_rng(0)
    ids = jnp.asarray(rng.permuted(np.tile(np.arange(64), (20_000, 1)), axis=1)[:, :4])
    routes = sorted(
        zip(np.asarray(routed_on(jnp.zeros(len(ids), jnp.uint32), ids)), np.sort(ids).tolist(), strict=True)
    )
    assert all((a == b) == (ids_a == ids_b) for (a, ids_a), (b, ids_b) in pairwise(routes))


IDS = jnp.asarray([[[0, 2], [1, 2]], [[2, 1], [0, 1]]])


def test_slots_count_real_tokens_only():
    """Two rows of two tokens; the last token is padding. Layer 1 of three is asked, twice."""
    state = Slots(
        (), jnp.arange(2), jnp.asarray([[5, 6], [0, 9]]), jnp.int32(1), capacity=9, block=3, all_slots=True,
        routes=jnp.zeros((2, 2), jnp.uint32), load=jnp.zeros((3, 4), jnp.int32),
    )  # fmt: skip
    state = state.routed(1, IDS)
    assert state.load is not None
    assert state.load.tolist() == [[0] * 4, [1, 2, 3, 0], [0] * 4]
    again = state.routed(1, IDS).load
    assert again is not None
    assert again.tolist() == [[0] * 4, [2, 4, 6, 0], [0] * 4]
    assert state.routes is not None
    assert state.routes[0, 1] == state.routes[1, 0]  # experts 1 and 2, in either order
    assert len(set(state.routes.ravel().tolist())) == 3


def test_nobody_asks_nothing_is_kept():
    one = jnp.zeros((2, 2), jnp.int32)
    assert Packed(one, one).routed(0, IDS).routes is None
    state = Slots((), one[0], one, jnp.int32(1), 4, 2, True).routed(0, IDS)
    assert state.routes is None
    assert state.load is None
