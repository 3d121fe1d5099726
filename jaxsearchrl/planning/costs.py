"""What the programs compute and move, counted by hand: matrix products, and bytes to and from a chip's memory.

A product of [M, I] and [I, O] is 2 M I O FLOPs. Norms, activations, softmax and rotations are left out (a few
hundredths), and so is what chips send each other. Bytes are those of weights, of caches and of each linear's inputs and
outputs: the least, since a compiler may write more. All is of one chip: sizes are those of the parts that lie there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxsearchrl.config import LearningConfig, SamplingConfig
from jaxsearchrl.models.decoder import Model, Weights, head_of, layer_weights
from jaxsearchrl.models.experts import TILE
from jaxsearchrl.models.gated_delta import CHUNK
from jaxsearchrl.models.packed_attention import BLOCK
from jaxsearchrl.models.state import KeyValues, Recurrent
from jaxsearchrl.planning.programs import Arrays, bytes_on_chip

FLOAT = 4  # bytes: all that is computed is float32, whatever the weights

# The linears whose outputs go into a layer's cache.
_CACHED = ("k_proj", "v_proj", "in_proj_qkv", "in_proj_a", "in_proj_b")


@dataclass(frozen=True)
class Work:
    """FLOPs of products with bfloat16 and with float32 factors, and bytes moved."""

    bfloat16: float = 0.0
    float32: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.bfloat16 + other.bfloat16, self.float32 + other.float32, self.bytes + other.bytes)

    def __mul__(self, times: float) -> "Work":
        return Work(self.bfloat16 * times, self.float32 * times, self.bytes * times)

    @property
    def flops(self) -> float:
        """Of both kinds."""
        return self.bfloat16 + self.float32

    def seconds(self, bfloat16: float, float32: float, bandwidth: float) -> float:
        """A roofline (Williams et al., 2009): products at their rates (FLOP/s) or memory at its own, the longer."""
        return max(self.bfloat16 / bfloat16 + self.float32 / float32, self.bytes / bandwidth)


def extend_call(model: Model, arrays: Arrays, sampling: SamplingConfig, context: float) -> Work:
    """One call of extend, all its chunks full: C · T tokens through the layers, each reading `context` positions.

    Of the last layer only what its cache keeps is computed: nobody reads its output.
    """
    chunks, T = sampling.extend_chunks, sampling.chunk_tokens
    tokens, last, work = chunks * T, model.arch.layers - 1, Work()
    for i in range(last):
        work += _linears(model, arrays, i, tokens)
        work += _mixer(model, arrays, i, chunks, T, _blocks(context, sampling.read_block))
    work += _linears(model, arrays, last, tokens, only=_CACHED)
    if isinstance(arrays.cache.layers[last], Recurrent):
        work += _mixer(model, arrays, last, chunks, T, 0)
    return work


def decode_step(model: Model, arrays: Arrays, sampling: SamplingConfig, context: float) -> Work:
    """One token in each slot of a bank, through layers and head; each reads `context` positions of its cache."""
    S, work = slots_on_chip(arrays), Work()
    for i in range(model.arch.layers):
        work += _linears(model, arrays, i, S) + _mixer(model, arrays, i, S, 1, _blocks(context, sampling.read_block))
    return work + _product(S, head_of(arrays.base))


def learner_batch(model: Model, arrays: Arrays, learning: LearningConfig, actions: float) -> Work:
    """The gradient of one batch of full rows, one trajectory each: layers forward and backward, head at the actions.

    actions: of one chip's rows. A KL term has one more forward pass, under the other adapter.
    """
    arrays = _gathered(arrays)
    work = head(arrays, actions)
    for i in range(model.arch.layers):
        work += layer_forward(model, arrays, learning, i) * (2 if learning.kl_weight else 1)
        work += layer_backward(model, arrays, learning, i)
    return work + head(arrays, actions) * 0.5 if learning.kl_weight else work


def _gathered(arrays: Arrays) -> Arrays:
    """With weights as the learner's products have them: what "fsdp" cuts has been gathered. A decode step adds up."""

    def laid(x: Any) -> Any:
        cut = PartitionSpec(*(None if axis == "fsdp" else axis for axis in x.sharding.spec))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(x.sharding.mesh, cut))

    return replace(arrays, base=jax.tree.map(laid, arrays.base), lora=jax.tree.map(laid, arrays.lora))


def layer_forward(model: Model, arrays: Arrays, learning: LearningConfig, layer: int) -> Work:
    """Linears, LoRA beside them, and what mixes tokens (two products in each pair of attention's blocks)."""
    tokens = rows_on_chip(arrays) * learning.pack_tokens
    return _linears(model, arrays, layer, tokens) + _packed_mixer(model, arrays, learning, layer, backward=False)


def layer_backward(model: Model, arrays: Arrays, learning: LearningConfig, layer: int) -> Work:
    """The layer's inside again, the gradient by each linear's input (as much), and LoRA's by A and B (as much as LoRA).

    The last linear of a plain MLP is not computed again: its output is nobody's factor.
    """
    tokens = rows_on_chip(arrays) * learning.pack_tokens
    linears = _linears(model, arrays, layer, tokens)
    lora = Work(float32=_lora(model, arrays, layer, tokens))
    work = linears * 2 + lora + _packed_mixer(model, arrays, learning, layer, backward=True)
    if not model.arch.is_sparse(layer):
        down = _product(tokens, layer_weights(arrays.base, layer)["mlp.down_proj.weight"])
        work += down * -1
    return work


def head(arrays: Arrays, actions: float) -> Work:
    """Logits of each action, and W[y] - E_p[W], by which alone it is differentiated: two products with the head."""
    return _product(actions, head_of(arrays.base)) * 2


# ---------------------------------------------------------------------------------------------------------- the linears


def _product(tokens: float, weight: Any) -> Work:
    """Of some rows and a matrix [O, I]: 2 · tokens · I · O; the matrix is read, rows in and out are moved."""
    out, inputs = _local(weight)
    flops = 2.0 * tokens * out * inputs
    moved = out * inputs * weight.dtype.itemsize + tokens * (out + inputs) * FLOAT
    return Work(flops, 0.0, moved) if weight.dtype == jnp.bfloat16 else Work(0.0, flops, moved)


def _linears(model: Model, arrays: Arrays, layer: int, tokens: float, only: tuple[str, ...] = ()) -> Work:
    """All linears of a layer (or those of these names) with their LoRA, router and experts too, for so many tokens."""
    work = Work(float32=_lora(model, arrays, layer, tokens, only))
    for name, weight in layer_weights(arrays.base, layer).items():
        # The experts' biases have two axes too.
        if len(weight.shape) == 2 and not name.endswith("bias") and _is_of(name, only):
            work += _product(tokens, weight)
    if model.arch.is_sparse(layer) and not only:
        work += _experts(model, arrays, layer, tokens)
    return work


def _lora(model: Model, arrays: Arrays, layer: int, tokens: float, only: tuple[str, ...] = ()) -> float:
    """FLOPs of x A B: 2 · tokens · R · (I + O) of each linear; of experts by the rows that they compute."""
    rows, _ = _tiles(model, arrays, tokens)
    flops = 0.0
    for name, matrix in layer_weights(arrays.lora, layer).items():
        size = _local(matrix)
        if _is_of(name, only):
            flops += 2.0 * (tokens * math.prod(size) if len(size) == 2 else rows * math.prod(size[1:]))
    return flops


def _is_of(name: str, linears: tuple[str, ...]) -> bool:
    return not linears or name.split(".")[-2] in linears


def _experts(model: Model, arrays: Arrays, layer: int, tokens: float) -> Work:
    """Products of tiles with one expert's matrices each, which every tile reads, in MXFP4 where they are kept so."""
    rows, tiles = _tiles(model, arrays, tokens)
    work, bfloat16 = Work(), arrays.base["norm.weight"].dtype == jnp.bfloat16
    for name, stack in _stacks(layer_weights(arrays.base, layer)):
        expert = _local(stack)[1:]
        if name.endswith("scales"):
            work += Work(bytes=tiles * math.prod(expert))
            continue
        values = math.prod(expert) * (2 if name.endswith("blocks") else 1)
        flops = 2.0 * rows * values
        moved = tiles * math.prod(expert) * stack.dtype.itemsize
        work += Work(flops, 0.0, moved) if bfloat16 else Work(0.0, flops, moved)
    return work


def _tiles(model: Model, arrays: Arrays, tokens: float) -> tuple[float, float]:
    """Rows that a layer's experts compute and tiles that hold them (`models/experts.py`); on a CPU each takes all."""
    experts = model.arch.experts
    if experts is None:
        return 0.0, 0.0
    platform = arrays.base["norm.weight"].sharding.mesh.devices.flat[0].platform
    if platform == "cpu":
        return tokens * experts.count, experts.count
    size = min(TILE, tokens * experts.chosen)
    tiles = tokens * experts.chosen // size + experts.count
    return tiles * size, tiles


def _stacks(layer: Weights) -> Iterator[tuple[str, Any]]:
    """The experts' matrices, [E, ...]; their biases have two axes only."""
    return ((name, weight) for name, weight in layer.items() if ".experts." in name and len(weight.shape) > 2)


# ------------------------------------------------------------------------------------------------ what mixes the tokens


def _mixer(model: Model, arrays: Arrays, layer: int, rows: int, T: int, context: float) -> Work:
    """Of the sampler: rows of T new tokens, each row beside its slot's cache.

    Attention: scores and values, 4 · N · H FLOPs for each token and position; a row reads its keys and values once.
    """
    cache = arrays.cache.layers[layer]
    if isinstance(cache, Recurrent):
        state = rows * bytes_on_chip(cache) / slots_on_chip(arrays)
        return Work(0.0, rows * _delta(cache, T, packed=False), 2 * state)
    assert isinstance(cache, KeyValues)
    H, kv_heads = model.arch.head_dim, _local(cache.keys)[1]
    length = min(context, cache.keys.shape[2] / H)
    heads = min(_heads(model, arrays, layer), model.arch.heads * kv_heads / model.arch.kv_heads)
    flops = 4.0 * rows * T * heads * H * length
    return Work(0.0, flops, rows * 2 * kv_heads * H * length * cache.keys.dtype.itemsize)


def _packed_mixer(model: Model, arrays: Arrays, learning: LearningConfig, layer: int, *, backward: bool) -> Work:
    """Of the learner: rows of one trajectory each. Attention takes two products in every pair of blocks.

    Backward it takes these again and five more (Dao et al., 2022, arXiv:2205.14135, algorithm 4); a recurrent state its
    forward pass twice, since a chunk's inside is made anew, and as much again by each of the factors.
    """
    T, cache = learning.pack_tokens, arrays.cache.layers[layer]
    if isinstance(cache, Recurrent):
        return Work(float32=rows_on_chip(arrays) * (4 if backward else 1) * _delta(cache, T, packed=True))
    block = min(BLOCK, T)
    n = -(-T // block)
    pairs = n * (n + 1) / 2
    if model.arch.kind(layer) == "sliding_attention":
        back = min(n - 1, -(-(model.arch.window - 1) // block))  # blocks before its own that a query sees
        pairs = sum(min(i, back) + 1 for i in range(n))
    width = _heads(model, arrays, layer) * model.arch.head_dim
    products = 7 if backward else 2
    return Work(float32=rows_on_chip(arrays) * products * pairs * 2.0 * block**2 * width)


def _delta(cache: Recurrent, T: int, *, packed: bool) -> float:
    """FLOPs of the gated delta rule for one row of T tokens (`models/gated_delta.py`), in chunks of C.

    A chunk and head: three products of [C, C] (keys by keys, queries by keys, scores by values), the triangular system
    of C² (Dk + Dv), two reads and one write of a memory [Dk, Dv]; packed rows read three memories and write two.
    """
    _, heads, dk, dv = _local(cache.memory)
    C = min(CHUNK, T)
    reads, writes = (3, 2) if packed else (1, 1)
    chunk = C * C * (4 * dk + 2 * dv + dk + dv) + 2 * C * dk * dv * (2 * reads + writes)
    return -(-T // C) * heads * float(chunk)


def _heads(model: Model, arrays: Arrays, layer: int) -> float:
    """Query heads of one chip."""
    weight = layer_weights(arrays.base, layer)["self_attn.q_proj.weight"]
    return model.arch.heads * _local(weight)[0] / weight.shape[0]


def _blocks(context: float, block: int) -> float:
    """Positions that are read for so many: whole blocks."""
    return math.ceil(context / block) * block


def slots_on_chip(arrays: Arrays) -> int:
    """Of the sampler's slots, those of one bank."""
    return _local(jax.tree.leaves(arrays.cache)[0])[0]


def rows_on_chip(arrays: Arrays) -> int:
    """Of a batch's rows, those of one chip."""
    return _local(arrays.batch.tokens)[0]


def _local(x: Any) -> tuple[int, ...]:
    return x.sharding.shard_shape(x.shape)
