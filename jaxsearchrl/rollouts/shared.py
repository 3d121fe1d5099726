"""Rollouts of several processes: each plays whole groups, and all get all of them, in the same order.

What an episode samples depends on its uid and not on who plays it, so the list is that of one process.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from jaxsearchrl import hosts
from jaxsearchrl.interruption import Interrupted
from jaxsearchrl.records import RolloutRecord, TurnRecord, build, from_json_line, to_json_line
from jaxsearchrl.rollouts.loop import Rollout
from jaxsearchrl.sampling.engine import Engine
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.tasks.environment import Score
from jaxsearchrl.trajectory import Span, Trajectory


def play_together(
    play: Callable[[Sequence[int]], list[Rollout]], groups: int, tries: int, engine: Engine, searches: SearchCounters
) -> list[Rollout]:
    """The rollouts of all groups, in order. play: those with given uids, which are this process's share.

    What engine and searches counted becomes the sum over processes. Raises Interrupted in all processes when one of
    them was.
    """
    mine = hosts.share(groups)
    uids = range(mine.start * tries, mine.stop * tries)
    if hosts.count() == 1:
        return play(uids)
    try:
        played = _to_bytes(play(uids), engine, searches)
    except Interrupted:
        played = b""
    parts = hosts.exchange(played)
    if not all(parts):
        raise Interrupted
    rollouts: list[Rollout] = []
    loads = []
    for part in parts:
        found = json.loads(zlib.decompress(part))
        rollouts += map(_rollout, found["rollouts"])
        searches.give(found["searches"])
        loads.append(found["load"])
    if engine.load is not None:
        engine.load = np.sum(loads, axis=0).astype(engine.load.dtype)
    return rollouts


def all_records(
    mine: Iterable[RolloutRecord], stopped: bool, searches: SearchCounters
) -> tuple[list[RolloutRecord], bool]:
    """The records that any process has, and whether any was stopped; what searches counted becomes the sum."""
    if hosts.count() == 1:
        return [*mine], stopped
    said = {"records": [*map(to_json_line, mine)], "stopped": stopped, "searches": searches.give_away()}
    parts = hosts.exchange(zlib.compress(json.dumps(said).encode(), 1))
    found = [json.loads(zlib.decompress(part)) for part in parts]
    for part in found:
        searches.give(part["searches"])
    return [from_json_line(line) for part in found for line in part["records"]], any(part["stopped"] for part in found)


def _to_bytes(rollouts: Sequence[Rollout], engine: Engine, searches: SearchCounters) -> bytes:
    said = {
        "rollouts": [asdict(rollout) for rollout in rollouts],
        "load": None if engine.load is None else engine.load.tolist(),
        "searches": searches.give_away(),
    }
    return zlib.compress(json.dumps(said, default=float).encode(), 1)


def _rollout(data: dict[str, Any]) -> Rollout:
    trajectory, score = data["trajectory"], data["score"]
    spans = [Span(**span) for span in trajectory["spans"]]
    return Rollout(
        **{
            **data,
            "trajectory": Trajectory(**{**trajectory, "spans": spans}),
            "turns": [build(TurnRecord, turn) for turn in data["turns"]],
            "score": None if score is None else Score(**score),
        }
    )
