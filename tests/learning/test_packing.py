import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.errors import UserError
from jaxsearchrl.learning.packing import TrainRow, pack, row_from
from jaxsearchrl.trajectory import Trajectory


def episode(*parts: tuple[str, list[int]]) -> Trajectory:
    trajectory = Trajectory()
    for kind, ids in parts:
        if kind == "prompt":
            trajectory.append_prompt(ids)
        elif kind == "sampled":
            trajectory.append_sampled(ids, [-i / 100 for i in ids])
        else:
            trajectory.append_observation(ids)
    return trajectory


def row_of_length(uid: int, length: int) -> TrainRow:
    """A prompt token, then sampled ids that spell the uid, each with its own log-prob; the advantage tells both."""
    trajectory = episode(("prompt", [1]), ("sampled", [uid * 100 + i for i in range(1, length)]))
    return row_from(uid, trajectory, uid + length / 1000)


def test_one_row_by_hand():
    trajectory = episode(
        ("prompt", [7, 8]), ("sampled", [20, 21]), ("observation", [9, 9, 9]), ("sampled", [22]), ("observation", [6])
    )
    (batch,) = pack([row_from(3, trajectory, 0.5)], pack_rows=2, pack_tokens=10).batches
    assert batch.tokens.tolist() == [[7, 8, 20, 21, 9, 9, 9, 22, 6, 0], [0] * 10]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 8, 0], [0] * 10]
    assert batch.segments.tolist() == [[1] * 9 + [0], [0] * 10]
    assert int(batch.n_actions) == 3
    # The hidden state before an action predicts it: actions stand at 2, 3 and 7.
    assert batch.action_index.tolist() == [1, 2, 6] + [0] * 17
    assert batch.targets.tolist() == [20, 21, 22] + [0] * 17
    np.testing.assert_array_equal(batch.old_logprobs, np.array([-0.20, -0.21, -0.22] + [0] * 17, np.float32))
    np.testing.assert_array_equal(batch.advantages, np.array([0.5] * 3 + [0] * 17, np.float32))
    np.testing.assert_array_equal(batch.weights, np.array([1] * 3 + [0] * 17, np.float32))


def test_first_fit_decreasing_fills_the_holes():
    rows = [row_of_length(uid, length) for uid, length in [(1, 3), (2, 7), (3, 5), (4, 4)]]
    (batch,) = pack(rows, pack_rows=2, pack_tokens=10).batches
    assert batch.segments.tolist() == [[1] * 7 + [2] * 3, [1] * 5 + [2] * 4 + [0]]
    assert batch.tokens[:, 1].tolist() == [201, 301]
    assert batch.tokens[0, 8] == 101


lengths = st.lists(st.integers(2, 16), min_size=1, max_size=20)


@given(lengths, st.integers(1, 3), st.randoms())
def test_every_row_keeps_its_own_tokens_logprobs_and_advantage(lengths, pack_rows, random):
    rows = [row_of_length(uid, length) for uid, length in enumerate(lengths, start=1)]
    random.shuffle(rows)
    packing = pack(rows, pack_rows=pack_rows, pack_tokens=16)
    assert packing.packed == len(rows)
    seen = []
    for batch in packing.batches:
        assert batch.tokens.shape == batch.positions.shape == batch.segments.shape == (pack_rows, 16)
        flat_tokens = batch.tokens.reshape(-1)
        flat_owner = (np.arange(pack_rows)[:, None] * 100 + batch.segments).reshape(-1)
        n = int(batch.n_actions)
        assert batch.weights.tolist() == [1.0] * n + [0.0] * (pack_rows * 16 - n)
        for slot in range(n):
            uid, i = divmod(int(batch.targets[slot]), 100)
            before = batch.action_index[slot]
            assert flat_tokens[before + 1] == batch.targets[slot]
            assert flat_owner[before + 1] == flat_owner[before]
            assert batch.positions.reshape(-1)[before] == i - 1
            assert batch.advantages[slot] == np.float32(uid + lengths[uid - 1] / 1000)
            assert batch.old_logprobs[slot] == np.float32(-batch.targets[slot] / 100)
            seen.append((uid, i))
    assert sorted(seen) == [(uid, i) for uid, length in enumerate(lengths, start=1) for i in range(1, length)]


@given(lengths, st.randoms())
def test_the_batches_do_not_depend_on_the_order_of_the_rows(lengths, random):
    rows = [row_of_length(uid, length) for uid, length in enumerate(lengths)]
    straight = pack(rows, pack_rows=2, pack_tokens=16).batches
    random.shuffle(rows)
    mixed = pack(rows, pack_rows=2, pack_tokens=16).batches
    assert len(straight) == len(mixed)
    jax.tree.map(np.testing.assert_array_equal, straight, mixed)


def test_every_batch_has_the_same_shapes_and_is_one_trace():
    traces = []

    @jax.jit
    def actions(batch):
        traces.append(1)
        return batch.n_actions

    batches = pack([row_of_length(uid, 9) for uid in range(5)], pack_rows=2, pack_tokens=10).batches
    assert [int(actions(batch)) for batch in batches] == [16, 16, 8]
    assert len(traces) == 1


def test_rows_left_out_are_counted():
    silent = row_from(1, episode(("prompt", [5, 6]), ("observation", [7])), 1.0)
    zero = row_from(2, episode(("prompt", [5]), ("sampled", [6])), 0.0)
    taught = row_from(3, episode(("prompt", [5]), ("sampled", [6])), -0.5)
    packing = pack([silent, zero, taught], pack_rows=1, pack_tokens=4)
    assert (packing.packed, packing.zero_advantage, packing.without_actions) == (1, 1, 1)
    assert [int(batch.n_actions) for batch in packing.batches] == [1]
    kept = pack([silent, zero, taught], pack_rows=1, pack_tokens=4, skip_zero=False)
    assert (kept.packed, kept.zero_advantage, kept.without_actions) == (2, 0, 1)
    assert [int(batch.n_actions) for batch in kept.batches] == [2]


def test_a_step_whose_masks_sum_to_zero_makes_no_batch():
    packing = pack([row_from(1, episode(("prompt", [5, 6])), 1.0)], pack_rows=1, pack_tokens=4)
    assert packing.batches == []
    assert packing.without_actions == 1


def test_a_row_longer_than_the_learner_holds_is_refused():
    with pytest.raises(UserError, match=r"trajectory 4 has 11 tokens but learning\.pack_tokens is 10"):
        pack([row_of_length(4, 11)], pack_rows=1, pack_tokens=10)


def test_a_repeated_uid_is_refused():
    with pytest.raises(ValueError, match="same uid"):
        pack([row_of_length(4, 3), row_of_length(4, 5)], pack_rows=1, pack_tokens=10)


def row(tokens=(1, 2, 3), mask=(0, 1, 1), logprobs=(0.0, -1.0, -2.0), advantage=1.0) -> TrainRow:
    return TrainRow(9, np.array(tokens, np.int32), np.array(mask, bool), np.array(logprobs, np.float32), advantage)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"logprobs": (0.0, -1.0)}, r"\(3, 3, 2\) tokens, mask values and log-probs"),
        ({"mask": (0, 1)}, "they must be as many"),
        ({"tokens": (), "mask": (), "logprobs": ()}, "empty"),
        ({"logprobs": (0.0, float("nan"), -1.0)}, "log-prob is not finite"),
        ({"advantage": float("inf")}, "advantage is inf"),
        ({"tokens": (1, -2, 3)}, "negative"),
        ({"mask": (1, 1, 1)}, "nothing precedes it"),
    ],
)
def test_a_broken_row_is_refused_by_name(broken, message):
    with pytest.raises(ValueError, match=f"row 9.*{message}"):
        row(**broken)
