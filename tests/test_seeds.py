"""Seeds and the order of tasks: functions of the step's number, so nothing has to be carried along."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.seeds import seed_of, task_order


def test_parts_steps_and_seeds_have_streams_of_their_own():
    names = [
        (seed, part, step) for seed in (0, 1, 42) for part in ("train", "eval", "lora") for step in (0, 1, 2, 1000)
    ]
    seeds = [seed_of(*name) for name in names]
    assert len(set(seeds)) == len(names)
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert seed_of(42, "train", 3) == seed_of(42, "train", 3)


def test_a_seed_is_the_same_on_every_machine():
    """A changed derivation would break the resumption of every run there is."""
    assert (seed_of(42, "train", 3), seed_of(42, "lora")) == (3421456937, 2480979367)
    assert task_order(5, 42, 0, 10) == [4, 2, 3, 1, 0, 4, 1, 2, 0, 3]


@given(count=st.integers(1, 20), seed=st.integers(0, 2**31 - 1), cuts=st.lists(st.integers(1, 7), max_size=12))
def test_the_stream_does_not_depend_on_how_it_is_cut(count, seed, cuts):
    start, pieces = 0, []
    for cut in cuts:
        pieces += task_order(count, seed, start, start + cut)
        start += cut
    assert pieces == (task_order(count, seed, 0, start) if start else [])


@given(count=st.integers(1, 20), seed=st.integers(0, 1000), epochs=st.integers(1, 4))
def test_each_epoch_has_every_task_once(count, seed, epochs):
    stream = task_order(count, seed, 0, epochs * count)
    for epoch in range(epochs):
        assert Counter(stream[epoch * count : (epoch + 1) * count]) == Counter(range(count))


def test_epochs_differ():
    stream = task_order(20, 7, 0, 60)
    assert stream[:20] != stream[20:40] != stream[40:]
