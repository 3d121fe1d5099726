"""Several processes, one a host, that make one run: who they are, and what they tell each other.

A process alone is the first and only one, and nothing here does anything. Several do the same things in the same order,
each on its own devices; what they do not do alike they tell each other: short words through JAX's coordination service,
which the first process keeps, long ones from device to device. Every process gives a sign of life each second; where
one fails or falls silent, the others say so and end, whatever they are waiting for.
"""

import atexit
import functools
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from jaxsearchrl.errors import StoppedByAlarm, UserError

SILENCE = 30.0
"""Seconds without a sign of life after which a process is lost."""
_SIGNS = "jaxsearchrl/signs/"
_SHORT = 1 << 16  # bytes that go through the coordination service
_CHUNK = 1 << 22  # bytes of one exchange between devices; one program serves all lengths

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class _Group:
    """This process among `count`; rounds: of `exchange`; lost: those that gave no sign of life for too long."""

    client: Any
    index: int
    count: int
    rounds: int = 0
    stop: bool = False  # this process was asked to stop
    others_stop: bool = False
    last_words: dict[str, Any] = field(default_factory=dict)  # of a process that ends: they stay in all of its signs
    lost: set[int] = field(default_factory=set)
    left: threading.Event = field(default_factory=threading.Event)

    def sign(self) -> None:
        """What the others shall see of this process."""
        sign = {"time": time.time(), "host": socket.gethostname(), "stop": self.stop, **self.last_words}
        self.client.key_value_set(f"{_SIGNS}{self.index}", json.dumps(sign), allow_overwrite=True)

    def signs(self) -> dict[int, dict[str, Any]]:
        """The others' last signs of life, by their numbers."""
        found = {int(key.rpartition("/")[2]): json.loads(sign) for key, sign in self.client.key_value_dir_get(_SIGNS)}
        return {number: sign for number, sign in found.items() if number != self.index}


_group: _Group | None = None


def are_asked_for() -> bool:
    """Whether this process was started as one of several (docs/hosts.md). Raises UserError for a word of no meaning."""
    if (word := os.environ.get("JAXSEARCHRL_HOSTS", "")) not in ("", "auto"):
        raise UserError(f"JAXSEARCHRL_HOSTS = {word!r}: set it to auto on TPU VMs and Slurm, and not at all elsewhere")
    said = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    return any(map(os.environ.get, said)) or _finds_itself()


def _finds_itself() -> bool:
    return os.environ.get("JAXSEARCHRL_HOSTS") == "auto"


@contextmanager
def joined() -> Iterator[None]:
    """Meets the other processes, if this is one of several, and leaves together with them.

    To be entered before JAX sees its devices. What is raised within ends the others too, with a message. Raises
    UserError for an environment that does not say which process this is. JAX ends a process whose others do not come
    within five minutes.
    """
    global _group
    if not are_asked_for():
        yield
        return
    _group = group = _meet()
    group.sign()
    threading.Thread(target=_watch, args=(group,), daemon=True).start()
    try:
        yield
        _part(group)
    except StoppedByAlarm:  # all of them
        _part(group)
        raise
    except BaseException as error:
        _fail(group, error)
        raise
    finally:
        _group = None


def count() -> int:
    """How many processes there are."""
    return _group.count if _group else 1


def is_first() -> bool:
    """Whether this is the process that prints, and writes the run folder."""
    return _group is None or _group.index == 0


def share(total: int) -> range:
    """This process's share of so many things: a row of them, none where there are fewer things than processes."""
    index = _group.index if _group else 0
    return range(total * index // count(), total * (index + 1) // count())


def once(action: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Does something in the first process only, and returns in all what it returned: something that JSON has."""
    if _group is None:
        return action(*arguments, **options)
    said = json.dumps(action(*arguments, **options), default=str).encode() if _group.index == 0 else b""
    return json.loads(exchange(said)[0])


def exchange(data: bytes) -> list[bytes]:
    """What every process gave in its same call, in their order: waits for all."""
    group = _group
    if group is None:
        return [data]
    group.rounds += 1
    group.client.key_value_set_bytes(
        _key(group.rounds, group.index), len(data).to_bytes(8) + (data if len(data) <= _SHORT else b"")
    )
    heads = [_awaited(group, _key(group.rounds, number)) for number in range(group.count)]
    if group.rounds > 1:  # whoever came to this round has read the last one's
        group.client.key_value_delete(_key(group.rounds - 1, group.index))
    sizes = [int.from_bytes(head[:8]) for head in heads]
    return [head[8:] for head in heads] if max(sizes) <= _SHORT else _gathered(data, sizes)


def arrays_of_first(tree: T) -> T:
    """The first process's numpy arrays, in every process; those of the others are of the same shapes and dtypes."""
    if _group is None:
        return tree
    import jax
    import numpy as np

    leaves, structure = jax.tree.flatten(tree)
    data = exchange(b"".join(leaf.tobytes() for leaf in leaves) if is_first() else b"")[0]
    given, at = [], 0
    for leaf in leaves:
        given.append(np.frombuffer(data, leaf.dtype, leaf.size, at).reshape(leaf.shape))
        at += leaf.nbytes
    return jax.tree.unflatten(structure, given)


def any_of(flag: bool) -> bool:
    """Whether it is true in any process; waits for all."""
    return any(map(bool, exchange(b"1" if flag else b"")))


def check_same(values: Mapping[str, str]) -> None:
    """Raises UserError where another process has another value of one of these."""
    digests = {name: hashlib.sha256(value.encode("utf-8", "replace")).hexdigest() for name, value in values.items()}
    first, *others = map(json.loads, exchange(json.dumps(digests).encode()))
    for number, other in enumerate(others, start=1):
        if differ := [name for name in first if other.get(name) != first[name]]:
            raise UserError(
                f"process {number} has other {', '.join(differ)} than process 0: give all hosts the same command and "
                "the same files"
            )


def ask_to_stop() -> None:
    """Lets the others know, with the next sign of life, that this process was asked to stop."""
    if _group:
        _group.stop = True


def others_stop() -> bool:
    """Whether another process is known to have been asked to stop."""
    return _group is not None and _group.others_stop


# ------------------------------------------------------------------------------------------------- coming and going


def _meet() -> _Group:
    import jax
    from jax._src.distributed import global_state  # its client has no public name

    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    numbers: dict[str, Any] = {}
    if not _finds_itself():  # JAX reads the address, but not these
        numbers = _numbers()
    where = os.environ.get("JAX_COORDINATOR_ADDRESS", "the first host")
    print(f"waiting for the other processes at {where}, five minutes at most", file=sys.stderr, flush=True)
    try:
        # JAX's own heartbeats end a process without a word of ours: they are for a first process that is lost.
        jax.distributed.initialize(
            **numbers, heartbeat_timeout_seconds=int(2 * SILENCE), shutdown_timeout_seconds=int(2 * SILENCE)
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"the processes did not meet: {error}") from error
    return _Group(global_state.client, jax.process_index(), jax.process_count())


def _numbers() -> dict[str, int]:
    if not re.fullmatch(r".+:[0-9]+", address := os.environ.get("JAX_COORDINATOR_ADDRESS", "")):
        raise UserError(
            f"JAX_COORDINATOR_ADDRESS = {address!r}: give address and port of process 0, such as 10.0.0.1:1234; for a "
            "process alone set none of it, JAX_NUM_PROCESSES and JAX_PROCESS_ID"
        )
    count, index = _number("JAX_NUM_PROCESSES"), _number("JAX_PROCESS_ID")
    if index >= count:
        raise UserError(f"JAX_PROCESS_ID = {index}: must be below JAX_NUM_PROCESSES = {count}, numbers begin with 0")
    return {"num_processes": count, "process_id": index}


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise UserError(
            f"{name} = {text!r}: JAX_COORDINATOR_ADDRESS is set, so this is one of several processes: give their "
            "number in JAX_NUM_PROCESSES and this one's, from 0 on, in JAX_PROCESS_ID"
        )
    return int(text)


def _part(group: _Group) -> None:
    exchange(b"")
    group.left.set()


def _fail(group: _Group, error: BaseException) -> None:
    if type(error).__name__ == "JaxRuntimeError":  # most likely for want of another process: then _watch says which
        time.sleep(SILENCE + 5)
    group.left.set()
    _say_at_last(group, failed=str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
    # JAX would wait for the others before it says goodbye.
    atexit.register(_end_at_once, 2 if isinstance(error, UserError) else 1)


def _say_at_last(group: _Group, **words: Any) -> None:
    """Tells the others; the first process, which keeps what is said, stays until they have heard it."""
    group.last_words = words
    with suppress(Exception):
        group.sign()
        until = time.monotonic() + 10
        while group.index == 0 and time.monotonic() < until:
            gone = {number for number, sign in group.signs().items() if "failed" in sign or "left" in sign}
            if len(gone | group.lost) == group.count - 1:
                break
            time.sleep(0.1)


def _end_at_once(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _watch(group: _Group) -> None:
    """Gives signs of life, and ends this process when another one fails or gives none."""
    heard: dict[int, tuple[dict[str, Any], float]] = {}
    while not group.left.wait(1.0):
        try:
            group.sign()
            signs = group.signs()
        except Exception as error:
            _lose(group, f"process 0 is lost: it cannot be reached ({error})")
            return
        now = time.monotonic()
        for number, sign in signs.items():
            if number not in heard or heard[number][0] != sign:
                heard[number] = sign, now
            group.others_stop |= sign["stop"]
            who = f"process {number} on {sign['host']}"
            if "failed" in sign:
                _lose(group, f"{who} failed: {sign['failed']}")
            if now - heard[number][1] > SILENCE and "left" not in sign:
                group.lost.add(number)
                _lose(group, f"{who} is lost: no sign of life for {SILENCE:.0f} seconds")


def _lose(group: _Group, what: str) -> None:
    if not group.left.is_set():
        print(
            f"error: {what}. This process ends too; the same command on all hosts goes on from what was kept",
            file=sys.stderr,
        )
        sys.stderr.flush()
        _say_at_last(group, left=True)
        _end_at_once(2)


# --------------------------------------------------------------------------------------------------- what is said


def _key(number: int, process: int) -> str:
    return f"jaxsearchrl/{number}/{process}"


def _awaited(group: _Group, key: str) -> bytes:
    """A value that another process sets at some time. In pieces of a second, so that a signal is heeded."""
    import jax

    while True:
        try:
            return group.client.blocking_key_value_get_bytes(key, 1000)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def _gathered(data: bytes, sizes: list[int]) -> list[bytes]:
    """The processes' bytes, over the first device of each."""
    import jax
    import numpy as np

    rows, gather = _gather()
    found = [bytearray() for _ in sizes]
    for start in range(0, max(sizes), _CHUNK):
        chunk, part = np.zeros((1, _CHUNK), np.uint8), data[start : start + _CHUNK]
        chunk[0, : len(part)] = np.frombuffer(part, np.uint8)
        everyone = np.asarray(gather(jax.make_array_from_process_local_data(rows, chunk, (len(sizes), _CHUNK))))
        for number, size in enumerate(sizes):
            found[number] += everyone[number, : max(0, size - start)].tobytes()
    return [bytes(part) for part in found]


@functools.cache
def _gather() -> tuple[Any, Callable[[Any], Any]]:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    first = [jax.local_devices(process_index=number)[0] for number in range(jax.process_count())]
    mesh = Mesh(np.array(first), ("process",))
    whole = NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec("process")), jax.jit(lambda x: x, out_shardings=whole)
