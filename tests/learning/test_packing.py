import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.errors import UserError
from jaxsearchrl.learning.packing import TrainRow, pack, parted, row_from
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
    assert batch.segments.tolist() == [[1] * 9 + [0], [0] * 10]  # alone, a row is all beginning
    assert int(batch.n_actions) == 3
    # The hidden state before an action predicts it: actions stand at 2, 3 and 7.
    assert batch.action_index.tolist() == [1, 2, 6] + [0] * 17
    assert batch.targets.tolist() == [20, 21, 22] + [0] * 17
    np.testing.assert_array_equal(batch.old_logprobs, np.array([-0.20, -0.21, -0.22] + [0] * 17, np.float32))
    np.testing.assert_array_equal(batch.advantages, np.array([0.5] * 3 + [0] * 17, np.float32))
    np.testing.assert_array_equal(batch.weights, np.array([1] * 3 + [0] * 17, np.float32))
    assert not batch.routes.any()  # nobody said which experts were taken


def test_a_group_shares_its_prompt_by_hand(new_row):
    prompt = [7, 8]
    rows = [
        new_row(5, 0.5, prompt, [20, 21], [9], [22]),
        new_row(6, -0.5, prompt, [20], [9, 9], [23]),
        new_row(7, 0.25, prompt, [20, 21]),
    ]
    (batch,) = pack(rows, pack_rows=1, pack_tokens=12).batches
    # Sorted: row 6 (20, 9), row 7 (20, 21), which is a beginning of row 5; all of them start with 7, 8, 20.
    assert batch.tokens.tolist() == [[7, 8, 20, 9, 9, 23, 21, 21, 9, 22, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4, 5, 3, 3, 4, 5, 0, 0]]
    assert batch.segments.tolist() == [[1, 1, 1, 2, 2, 2, 3, 4, 4, 4, 0, 0]]
    # The first action is predicted by 8, at 1, in all three; the second of rows 7 and 5 by the shared 20, at 2.
    n = int(batch.n_actions)
    assert n == 7
    assert batch.action_index[:n].tolist() == [1, 4, 1, 2, 1, 2, 8]
    assert batch.targets[:n].tolist() == [20, 23, 20, 21, 20, 21, 22]
    assert batch.advantages[:n].tolist() == [-0.5, -0.5, 0.25, 0.25, 0.5, 0.5, 0.5]
    sampled = [row.sample_logprobs[row.action_mask] for row in (rows[1], rows[2], rows[0])]
    np.testing.assert_array_equal(batch.old_logprobs[:n], np.concatenate(sampled))


def used(packing):
    """Tokens of each packed row."""
    return [int(n) for batch in packing.batches for n in (batch.segments > 0).sum(-1) if n]


def test_shared_beginnings_are_paid_for_once(new_row):
    prompt = list(range(10))
    rows = [new_row(uid, 1.0, prompt, [20 + uid] * (4 + uid)) for uid in range(3)]
    assert sum(len(row) for row in rows) == 45
    assert used(pack(rows, pack_rows=1, pack_tokens=25)) == [10 + 4 + 5 + 6]
    assert used(pack(rows, pack_rows=1, pack_tokens=24)) == [10 + 4 + 5, 10 + 6]


def test_two_questions_share_the_tools(new_row):
    tools = [1, 2, 3, 4]
    one = [new_row(uid, 1.0, [*tools, 5, 6], [20 + uid, 30]) for uid in (0, 1)]
    two = [new_row(uid, 1.0, [*tools, 7, 8], [20 + uid, 30]) for uid in (2, 3)]
    # The first group alone takes 6 + 2 * 2; with a row of the other, both must repeat their question: 4 + 3 * 4.
    assert used(pack(one, pack_rows=1, pack_tokens=20)) == [10]
    assert used(pack([*one, two[0]], pack_rows=1, pack_tokens=20)) == [16]
    assert used(pack([*one, *two], pack_rows=1, pack_tokens=20)) == [20]
    assert used(pack([*one, *two], pack_rows=1, pack_tokens=15)) == [10, 10]


def test_a_row_goes_where_it_costs_least_room(new_row):
    stranger = new_row(0, 1.0, [1] * 11, [2])
    group = [new_row(1, 1.0, [3] * 7, [4, 4, 4]), new_row(2, 1.0, [3] * 7, [5])]
    assert used(pack([stranger, *group], pack_rows=1, pack_tokens=20)) == [12, 7 + 3 + 1]


def test_a_row_that_is_a_beginning_of_another_costs_nothing(new_row):
    long, short = new_row(0, 1.0, [1, 2], [3, 4], [5], [6]), new_row(1, 1.0, [1, 2], [3])
    twin = new_row(2, -1.0, [1, 2], [3])
    packing = pack([long, short, twin], pack_rows=1, pack_tokens=6)
    assert used(packing) == [6]
    (batch,) = packing.batches
    assert batch.targets[: int(batch.n_actions)].tolist() == [3, 3, 3, 4, 6]
    assert batch.action_index[: int(batch.n_actions)].tolist() == [1, 1, 1, 2, 4]


def test_there_is_a_slot_for_every_action_of_rows_that_share_them(new_row):
    twins = [new_row(uid, 1.0 + uid, [1, 2], [3, 4, 5]) for uid in range(7)]
    packing = pack(twins, pack_rows=2, pack_tokens=7)
    # Two are 6 actions, three would be 9 in 7 slots.
    assert used(packing) == [5, 5, 5, 5]
    assert [int(batch.n_actions) for batch in packing.batches] == [12, 9]


lengths = st.lists(st.integers(2, 16), min_size=1, max_size=20)


def path(batch, row, segment, index):
    """Tokens and positions of what the hidden state at `index` of a packed row has seen, itself included."""
    seen = np.isin(batch.segments[row], (1, segment))
    seen[index + 1 :] = False
    return batch.tokens[row][seen].tolist(), batch.positions[row][seen].tolist()


# Few token ids, so that rows share beginnings of all lengths, contain one another and are equal.
trajectories = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.tuples(st.integers(1, 2), st.booleans()), min_size=1, max_size=11)),
    min_size=1,
    max_size=15,
)


@given(trajectories, st.integers(1, 3), st.integers(12, 30))
def test_each_action_stands_behind_its_own_history(trajectories, pack_rows, pack_tokens):
    rows = []
    for uid, (start, later) in enumerate(trajectories):
        tokens, mask = [start, *(token for token, _ in later)], [False, *(sampled for _, sampled in later)]
        logprobs = -np.arange(len(tokens)) - uid / 32
        fields = (np.array(tokens), np.array(mask), np.array(mask), np.float32(logprobs))
        rows.append(TrainRow(uid, *fields, np.arange(len(tokens)) + 100 * uid, uid + 1.0))
    packing = pack(rows, pack_rows=pack_rows, pack_tokens=pack_tokens)
    acting = {row.uid: row for row in rows if row.action_tokens}
    assert (packing.packed, packing.without_actions) == (len(acting), len(rows) - len(acting))
    found = {uid: [] for uid in acting}
    for batch in packing.batches:
        n = int(batch.n_actions)
        assert batch.weights.tolist() == [1.0] * n + [0.0] * (pack_rows * pack_tokens - n)
        for slot in range(n):
            row = acting[int(batch.advantages[slot]) - 1]
            at = round(-float(batch.old_logprobs[slot]) - row.uid / 32)
            assert (batch.targets[slot], batch.routes[slot]) == (row.tokens[at], row.routes[at])
            b, index = divmod(int(batch.action_index[slot]), pack_tokens)
            expected = row.tokens[:at].tolist(), list(range(at))
            assert path(batch, b, int(batch.segments[b, index]), index) == expected
            found[row.uid].append(at)
    assert found == {uid: np.flatnonzero(row.action_mask).tolist() for uid, row in acting.items()}


@given(lengths, st.integers(1, 3), st.randoms())
def test_every_row_keeps_its_own_tokens_logprobs_and_advantage(lengths, pack_rows, random):
    rows = [row_of_length(uid, length) for uid, length in enumerate(lengths, start=1)]
    random.shuffle(rows)
    packing = pack(rows, pack_rows=pack_rows, pack_tokens=16)
    seen = []
    for batch in packing.batches:
        assert batch.tokens.shape == batch.positions.shape == batch.segments.shape == (pack_rows, 16)
        for slot in range(int(batch.n_actions)):
            uid, i = divmod(int(batch.targets[slot]), 100)
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


def test_the_actions_of_rows_in_two_parts_by_hand():
    rows = [row_of_length(1, 4), row_of_length(2, 4), row_of_length(3, 3)]
    (batch,) = pack(rows, pack_rows=4, pack_tokens=4).batches
    assert batch.action_index[:8].tolist() == [0, 1, 2, 4, 5, 6, 8, 9]
    batch = parted(batch, 2)
    assert batch.n_actions.tolist() == [6, 2]
    # The third row is the first of its part.
    assert batch.action_index.tolist() == [0, 1, 2, 4, 5, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert batch.targets.tolist() == [101, 102, 103, 201, 202, 203, 0, 0, 301, 302, 0, 0, 0, 0, 0, 0]
    assert batch.weights.tolist() == [1] * 6 + [0] * 2 + [1] * 2 + [0] * 6


@given(lengths, st.sampled_from([1, 2, 3, 6]))
def test_a_part_has_the_actions_of_its_rows_and_nothing_is_lost(lengths, parts):
    rows = [row_of_length(uid, length) for uid, length in enumerate(lengths, start=1)]
    for batch in pack(rows, pack_rows=6, pack_tokens=16).batches:
        cut = parted(batch, parts)
        size, n = 96 // parts, int(batch.n_actions)
        places = [part * size + i for part in range(parts) for i in range(cut.n_actions[part])]
        index = cut.action_index + np.arange(96) // size * size  # of the whole batch again
        assert index[places].tolist() == batch.action_index[:n].tolist()
        for name in ("targets", "old_logprobs", "advantages", "weights", "sampled", "routes"):
            ours, theirs = getattr(cut, name), getattr(batch, name)
            assert ours.dtype == theirs.dtype
            assert ours[places].tolist() == theirs[:n].tolist()
            assert not np.delete(ours, places).any()
        np.testing.assert_array_equal(cut.tokens, batch.tokens)


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
    unplayed = row_from(5, episode(("prompt", list(range(1, 12)))), 1.0)  # a prompt that left no room for a turn
    assert pack([unplayed], pack_rows=1, pack_tokens=10).without_actions == 1


def test_a_repeated_uid_is_refused():
    with pytest.raises(ValueError, match="same uid"):
        pack([row_of_length(4, 3), row_of_length(4, 5)], pack_rows=1, pack_tokens=10)


def row(tokens=(1, 2, 3), mask=(0, 1, 1), logprobs=(0.0, -1.0, -2.0), routes=(0, 7, 8), advantage=1.0) -> TrainRow:
    read = np.array(mask, bool)
    fields = (np.array(tokens, np.int32), read, read, np.array(logprobs, np.float32), np.array(routes, np.uint32))
    return TrainRow(9, *fields, advantage)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"logprobs": (0.0, -1.0)}, r"\[3, 3, 3, 2, 3\] tokens, mask values"),
        ({"routes": (0, 7)}, r"\[3, 3, 3, 3, 2\] tokens, mask values"),
        ({"mask": (0, 1)}, "they must be as many"),
        ({"tokens": (), "mask": (), "logprobs": (), "routes": ()}, "empty"),
        ({"logprobs": (0.0, float("nan"), -1.0)}, "log-prob is not finite"),
        ({"advantage": float("inf")}, "advantage is inf"),
        ({"tokens": (1, -2, 3)}, "negative"),
        ({"mask": (1, 1, 1)}, "nothing precedes it"),
    ],
)
def test_a_broken_row_is_refused_by_name(broken, message):
    with pytest.raises(ValueError, match=f"row 9.*{message}"):
        row(**broken)
