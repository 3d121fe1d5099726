"""What a step hands to its updates."""

import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig
from jaxsearchrl.learning.advantages import group_advantages
from jaxsearchrl.learning.step import batches_of
from jaxsearchrl.trajectory import Trajectory

SMALL = {"pack_rows": 1, "pack_tokens": 16}


def trajectory(first):
    """A prompt of two tokens, a turn of two, an observation of two, a turn of one; ids from `first` on."""
    made = Trajectory()
    made.append_prompt([first, first + 1])
    made.append_sampled([first + 2, first + 3], [-0.5, -0.25])
    made.append_observation([first + 4, first + 5])
    made.append_sampled([first + 6], [-1.0])
    return made


TRAJECTORIES = [trajectory(10 * n) for n in range(6)]


def step(rewards, config, valid=(True,) * 6):
    """Three groups of two."""
    return batches_of(TRAJECTORIES, group_advantages(rewards, [0, 0, 1, 1, 2, 2], valid), 3, config)


def actions(batches):
    """(id, log-prob, sampled) of each action, in order of ids."""
    found = []
    for batch in batches:
        n = int(batch.n_actions)
        found += zip(
            batch.targets[:n].tolist(), batch.old_logprobs[:n].tolist(), batch.sampled[:n].tolist(), strict=True
        )
    return sorted(found)


def test_one_update_has_all_groups_with_signal_and_counts_all_valid_trajectories():
    [(batches, valid)], counts = step([1, 0, 1, 1, 0, 1], LearningConfig(**SMALL), (True,) * 5 + (True,))
    assert valid == 6
    assert [a for a, _, _ in actions(batches)] == [2, 3, 6, 12, 13, 16, 42, 43, 46, 52, 53, 56]
    assert (counts["learn/rows"], counts["learn/rows_without_signal"]) == (4.0, 2.0)


def test_groups_are_shared_out_among_the_updates_in_order():
    config = LearningConfig(updates_per_step=2, **SMALL)
    updates, _ = step([1, 0, 1, 0, 1, 0], config, (True,) * 3 + (False,) + (True,) * 2)
    assert [valid for _, valid in updates] == [3, 2]
    assert [{a // 10 for a, _, _ in actions(batches)} for batches, _ in updates] == [{0, 1}, {4, 5}]


def test_an_update_without_signal_is_left_out():
    updates, counts = step([1, 1, 1, 0, 1, 1], LearningConfig(updates_per_step=3, **SMALL))
    assert len(updates) == 1
    assert counts["learn/rows_without_signal"] == 4.0


@pytest.mark.parametrize(("rewards", "rows"), [([1, 0, 1, 1, 1, 1], 6.0), ([1, 1, 1, 1, 1, 1], 0.0)])
def test_a_kl_term_is_taken_over_all_rows_of_a_step_with_signal(rewards, rows):
    _, counts = step(rewards, LearningConfig(kl_weight=0.1, **SMALL))
    assert counts["learn/rows"] == rows


def test_observations_are_trained_on_in_the_ablation_only():
    config = LearningConfig(train_observations=True, **SMALL)
    [(batches, _)], _ = step([1, 0, 1, 1, 1, 1], config)
    assert actions(batches)[:5] == [(2, -0.5, 1.0), (3, -0.25, 1.0), (4, 0.0, 0.0), (5, 0.0, 0.0), (6, -1.0, 1.0)]
    [(batches, _)], _ = step([1, 0, 1, 1, 1, 1], LearningConfig(**SMALL))
    assert actions(batches)[:3] == [(2, -0.5, 1.0), (3, -0.25, 1.0), (6, -1.0, 1.0)]
    assert np.all(batches[0].sampled == batches[0].weights)
