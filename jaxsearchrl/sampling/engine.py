"""The sampler: resident slots, each holding one live trajectory for its whole life.

The key/value state of a turn is never computed twice. A trajectory of n tokens has n - 1 positions in the cache: its
last token is `pending` and goes in with the first decode step, so that extending never needs the output head. What a
new trajectory has in common with any slot's cache (a group's prompt, the tools' text of all prompts) is copied from
there instead of computed; a slot that was released is still a source until something else is written there. Slots are
chosen, extended and reported in the order of uids, so that a run repeats whatever the timing of its tools.

On a mesh whose "data" axis has D devices the slots are D banks, each on its own devices, which never exchange a slot: a
program is the same one for every bank, with lists of its own. Other axes cut each bank as they cut the weights.

A recurrent state or a window's keys, unlike those of full attention, serve at one length only. Of models that have such
layers each slot keeps them at three: as they stand, where the last decode began (a stop string noticed late goes back
there, and what was kept of the turn is computed again), and at the end of the prompt (for later tries of its group).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import jax
import numpy as np

from jaxsearchrl.config import SamplingConfig
from jaxsearchrl.models.decoder import Model, Weights
from jaxsearchrl.models.sharding import local
from jaxsearchrl.models.state import is_bound
from jaxsearchrl.sampling import programs
from jaxsearchrl.sampling.chunks import Chunk, calls_of
from jaxsearchrl.sampling.contract import SampleRequest, SampleResult
from jaxsearchrl.sampling.lowering import MAX_STOP_IDS, banks_of, cache_length, lower_programs, new_cache


@dataclass
class Counters:
    """What the sampler did, in tokens and dispatches."""

    prompt_tokens: int = 0  # of first turns, computed by extend
    observation_tokens: int = 0  # written by extend after a first turn; a turn's last sampled token rides along
    forked_tokens: int = 0  # of first turns, copied or kept instead of computed
    rewound_tokens: int = 0  # kept of a turn, to be written again by extend, since its stop string was noticed late
    sampled_tokens: int = 0
    extend_calls: int = 0
    decode_calls: int = 0


@dataclass
class _Slot:
    uid: int = -1  # -1: free
    tokens: list[int] = field(default_factory=list)  # positions 0 … len-1 are in the cache
    fresh: bool = False  # its first turn has not been extended yet
    started: int = 0  # len(tokens) when the last decode began
    prompt: int = 0  # len(tokens) where its prompt ended, if that is remembered
    request: SampleRequest | None = None
    ids: list[int] = field(default_factory=list)  # of the turn under way
    logprobs: list[float] = field(default_factory=list)
    routes: list[int] = field(default_factory=list)  # none for a model without experts


class Engine:
    """Implements `Sampler`. The cache is allocated and all programs are compiled on construction.

    base: the frozen weights, shared with the learner; never copied. Of arrays on several processes' devices it takes
    this process's part. Ids from `vocab_size` on are never sampled. load:
    how often the passes that sampled chose each expert since the last renewal, [layers with experts, E], or None.
    """

    def __init__(
        self,
        model: Model,
        base: Weights,
        lora: Weights,
        config: SamplingConfig,
        *,
        stop_ids: Sequence[int],
        vocab_size: int,
        seed: int,
    ):
        if len(stop_ids) > MAX_STOP_IDS:
            raise ValueError(f"{len(stop_ids)} stop ids; at most {MAX_STOP_IDS}")
        arch = model.arch
        base, lora = local(base), local(lora)
        self.config, self.base, self.lora, self.counters = config, base, lora, Counters()
        self._capacity = cache_length(config)
        self._stop_ids = np.array([*stop_ids, *[-1] * (MAX_STOP_IDS - len(stop_ids))], np.int32)
        self._seed = jax.random.key(seed)
        self._bound = is_bound(arch)
        self._sparse = [layer for layer in range(arch.layers) if arch.is_sparse(layer)]
        self._no_load = np.zeros((len(self._sparse), arch.experts.count), np.int64) if arch.experts else None
        self.load = self._no_load
        self._banks = banks_of(base)
        if config.slots % self._banks:
            raise ValueError(f"{config.slots} slots cannot be cut into {self._banks} banks")
        self._bank_slots = config.slots // self._banks
        self._cache = new_cache(model, base, config)
        self._slots = [_Slot() for _ in range(config.slots)]
        self._rewinds: list[int] = []  # slots whose stop string was noticed late in this dispatch
        self._by_uid: dict[int, int] = {}
        self._compile(model, vocab_size)

    # ------------------------------------------------------------------------------------------------- the contract

    @property
    def capacity(self) -> int:
        return self.config.capacity

    @property
    def free_slots(self) -> int:
        return sum(slot.uid < 0 for slot in self._slots)

    def submit(self, request: SampleRequest) -> None:
        if not request.tokens:
            raise ValueError(f"trajectory {request.uid} has no tokens")
        if request.limit < 1 or len(request.tokens) + request.limit > self.config.capacity:
            raise ValueError(
                f"trajectory {request.uid}: {len(request.tokens)} tokens + a limit of {request.limit} "
                f"do not fit sampling.capacity = {self.config.capacity}"
            )
        index = self._by_uid.get(request.uid)
        slot = self._slots[self._take(request) if index is None else index]
        if slot.request is not None:
            raise ValueError(f"trajectory {request.uid}: its last turn is still under way")
        if list(request.tokens[: len(slot.tokens)]) != slot.tokens or len(request.tokens) <= len(slot.tokens):
            raise ValueError(f"trajectory {request.uid}: its tokens do not continue what was sampled")
        slot.request = request

    def poll(self) -> list[SampleResult]:
        self._extend()
        return self._decode()

    def release(self, uid: int) -> None:
        slot = self._slots[self._by_uid.pop(uid)]
        slot.uid, slot.fresh, slot.request, slot.ids, slot.logprobs, slot.routes = -1, False, None, [], [], []

    def renew(self, lora: Weights, seed: int) -> None:
        """Takes new weights and a new random stream; frees all slots and forgets prompts computed with the old."""
        self.lora, self._seed, self.load = local(lora), jax.random.key(seed), self._no_load
        self._slots = [_Slot() for _ in self._slots]
        self._by_uid = {}

    # ---------------------------------------------------------------------------------------------------- the device

    def _compile(self, model: Model, vocab_size: int) -> None:
        """Compiles ahead of time: a call with another shape is an error, never a new compilation."""
        arrays = (self.base, self.lora, self._cache)
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), arrays)
        lowered = lower_programs(model, self.config, vocab_size, *abstract)
        self._extend_program, self._fork_program, self._decode_program = (
            lowered.pop(name).compile() for name in ("extend", "fork", "decode")
        )
        if self._bound:
            self._remember_program, self._rewind_program = (lowered[name].compile() for name in ("remember", "rewind"))

    def _take(self, request: SampleRequest) -> int:
        """A free slot for a new trajectory: the one whose cache has most in common with it, else the emptiest."""
        free = [i for i, slot in enumerate(self._slots) if slot.uid < 0]
        if not free:
            raise ValueError(f"trajectory {request.uid}: no free slot")
        shared = {i: self._serves(self._slots[i], request.tokens[:-1]) for i in free}
        index = min(free, key=lambda i: (-shared[i][0], len(self._slots[i].tokens), i))
        slot, (length, from_prompt) = self._slots[index], shared[index]
        slot.uid, slot.fresh, self._by_uid[request.uid] = request.uid, True, index
        slot.tokens = slot.tokens[:length]  # the cache is cut back to what serves
        if from_prompt:
            self._copy([(index, index, True)])
        if slot.prompt > length:
            slot.prompt = 0
        return index

    def _serves(self, slot: _Slot, known: Sequence[int]) -> tuple[int, bool]:
        """How many first tokens of `known` need not be computed with a slot's cache; whether as its prompt ended."""
        common = _common(slot.tokens, known)
        if not self._bound or common == len(slot.tokens):
            return common, False
        return (slot.prompt, True) if slot.prompt <= common else (0, False)

    def _extend(self) -> None:
        """Brings all slots with a turn to ask for up to their pending token."""
        self._fork()
        chunks, computed, prompts, waiting = [], [], [], False
        for index in self._in_order():
            slot, request = self._slots[index], self._slots[index].request
            if request is None or slot.ids:
                continue
            known = request.tokens[:-1]
            beside = [other for bank, other in computed if bank == self._bank(index)]
            if slot.fresh and any(self._serves(other, known)[0] > len(slot.tokens) for other in beside):
                waiting = True  # for a copy of what this pass computes
                continue
            missing = list(known[len(slot.tokens) :])
            if slot.fresh:
                computed.append((self._bank(index), _Slot(tokens=list(known))))
                prompts.append(index)
                self.counters.prompt_tokens += len(missing)
                self.counters.forked_tokens += len(slot.tokens)
            else:
                self.counters.observation_tokens += len(missing)
            size = self.config.chunk_tokens
            chunks += [(index, len(slot.tokens) + i, missing[i : i + size]) for i in range(0, len(missing), size)]
            slot.tokens, slot.fresh = list(known), False
        self._run_chunks(chunks)
        if self._bound and prompts:
            self._cache = self._remember_program(self._cache, *self._lists(prompts))
            for index in prompts:
                self._slots[index].prompt = len(self._slots[index].tokens)
        if waiting:
            self._extend()

    def _fork(self) -> None:
        """Copies to each fresh slot the cache that has most in common with its trajectory, live or free."""
        copies = []
        for index in self._in_order():
            slot, request = self._slots[index], self._slots[index].request
            if request is None or not slot.fresh:
                continue
            known = request.tokens[:-1]
            shared = [
                (0, False) if other.fresh or self._bank(i) != self._bank(index) else self._serves(other, known)
                for i, other in enumerate(self._slots)
            ]
            source = int(np.argmax([length for length, _ in shared]))
            length, from_prompt = shared[source]
            if length > len(slot.tokens):
                copies.append((source, index, from_prompt))
                slot.tokens, slot.prompt = list(known[:length]), 0
        if copies:
            self._copy(copies)

    def _copy(self, copies: list[tuple[int, int, bool]]) -> None:
        """Each copy is (source, target, whether as the source's prompt ended)."""
        sources, targets, from_prompt = zip(*copies, strict=True)
        here = [source % self._bank_slots for source in sources]
        *lists, counts = self._lists(targets, here, from_prompt)
        self._cache = self._fork_program(self._cache, lists[1], lists[0], lists[2].astype(bool), counts)

    def _lists(self, slots: Sequence[int], *more: Sequence[int]) -> tuple[np.ndarray, ...]:
        """For each bank a list of those of the slots that are its own, by their numbers in it.

        more: columns beside the slots. Returns [S] for the slots and each column, bank after bank, padded at the end of
        each, and the lengths of the banks' lists [D].
        """
        columns, counts = np.zeros((1 + len(more), len(self._slots)), np.int32), np.zeros(self._banks, np.int32)
        for slot, *values in zip(slots, *more, strict=True):
            bank = self._bank(slot)
            columns[:, bank * self._bank_slots + counts[bank]] = [slot % self._bank_slots, *values]
            counts[bank] += 1
        return (*columns, counts)

    def _bank(self, slot: int) -> int:
        return slot // self._bank_slots

    def _run_chunks(self, chunks: list[Chunk]) -> None:
        C, T, D = self.config.extend_chunks, self.config.chunk_tokens, self._banks
        of_banks = [[chunk for chunk in chunks if self._bank(chunk[0]) == bank] for bank in range(D)]
        for calls in zip_longest(*(calls_of(of_bank, C, apart=self._bound) for of_bank in of_banks), fillvalue=()):
            tokens, rows = np.zeros((D * C, T), np.int32), np.zeros(D * C, np.int32)
            positions = np.full((D * C, T), self._capacity, np.int32)
            longest = 0
            for bank, call in enumerate(calls):
                for i, (slot, start, ids) in enumerate(call, start=bank * C):
                    tokens[i, : len(ids)], rows[i] = ids, slot % self._bank_slots
                    positions[i, : len(ids)] = np.arange(start, start + len(ids))
                    longest = max(longest, start + len(ids))
            self._cache = self._extend_program(
                self.base, self.lora, self._cache, tokens, rows, positions, self._blocks(longest)
            )
            self.counters.extend_calls += 1

    def _decode(self) -> list[SampleResult]:
        """One dispatch over all turns under way."""
        S, steps = len(self._slots), self.config.decode_steps
        pending, lengths, budgets, uids = (np.zeros(S, np.int32) for _ in range(4))
        temperatures = np.ones(S, np.float32)
        busy = [i for i in self._in_order() if self._slots[i].request is not None]
        if not busy:
            return []
        for i in busy:
            slot, request = self._slots[i], self._slots[i].request
            assert request is not None
            pending[i] = slot.ids[-1] if slot.ids else request.tokens[-1]
            lengths[i], uids[i], temperatures[i] = len(slot.tokens), request.uid, request.temperature
            slot.started = len(slot.tokens)
            budgets[i] = request.limit - len(slot.ids)
        self._cache, out = self._decode_program(
            self.base,
            self.lora,
            self._cache,
            programs.Rows(pending, lengths, budgets, uids, temperatures),
            self._stop_ids,
            self._seed,
            np.int32(steps),
            self._blocks(int(lengths.max()) + steps),
        )
        self.counters.decode_calls += 1
        out = jax.device_get(out)
        if self.load is not None and out.load is not None:
            self.load = self.load + out.load.sum(0)[self._sparse]
        results = [self._collect(i, out) for i in range(S) if i in busy]
        if self._rewinds:
            self._cache = self._rewind_program(self._cache, *self._lists(self._rewinds))
            self._rewinds = []
        return sorted((r for r in results if r), key=lambda r: r.uid)

    def _collect(self, index: int, out: programs.Decoded) -> SampleResult | None:
        """Takes a dispatch's tokens into a slot; the turn's result if it ended."""
        slot, request = self._slots[index], self._slots[index].request
        assert request is not None
        ids, stopped = out.tokens[index, : out.counts[index]], out.stopped[index]
        # In the cache: the token that was pending, and all new ones but the last.
        slot.tokens += [slot.ids[-1] if slot.ids else request.tokens[-1], *(int(i) for i in ids[:-1])]
        slot.ids += (int(i) for i in ids)
        slot.logprobs += (float(p) for p in out.logprobs[index, : len(ids)])
        slot.routes += [] if out.routes is None else (int(route) for route in out.routes[index, : len(ids)])
        keep = request.find_stop(slot.ids) if request.find_stop else None
        if keep is not None and not (stopped and keep == len(slot.ids)):
            # Tokens after the stop string are dropped, and the cache goes back by its length.
            slot.ids, slot.logprobs, slot.routes = slot.ids[:keep], slot.logprobs[:keep], slot.routes[:keep]
            self._cut(index, len(request.tokens) + keep - 1)
            reason = "stop_string"
        elif stopped:
            reason = "stop"
        elif len(slot.ids) >= request.limit:
            reason = "length"
        else:
            return None
        self.counters.sampled_tokens += len(slot.ids)
        result = SampleResult(request.uid, tuple(slot.ids), tuple(slot.logprobs), reason, tuple(slot.routes))
        slot.request, slot.ids, slot.logprobs, slot.routes = None, [], [], []
        return result

    def _cut(self, index: int, length: int) -> None:
        """Takes a slot's cache back to a length within the last dispatch, or to that one's start if it is bound."""
        slot = self._slots[index]
        if self._bound and length < len(slot.tokens):
            self.counters.rewound_tokens += length - slot.started
            self._rewinds.append(index)
            length = slot.started
        slot.tokens = slot.tokens[:length]

    def _in_order(self) -> list[int]:
        """Taken slots by uid."""
        return [self._by_uid[uid] for uid in sorted(self._by_uid)]

    def _blocks(self, length: int) -> np.int32:
        return np.int32(min(-(-length // self.config.read_block), self._capacity // self.config.read_block))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first tokens two sequences have in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if list(a[low:middle]) == list(b[low:middle]) else (low, middle - 1)
    return low
