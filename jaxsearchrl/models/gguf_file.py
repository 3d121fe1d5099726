"""Reads .gguf files (llama.cpp's format) as Hugging Face checkpoints: names and layouts, quantised blocks made float32.

Three things differ from a Hugging Face folder: llama's q and k rows are interleaved for another rotary layout, a tied
head is either absent or stored a second time, and Llama 3's stretched frequencies are a tensor, not config values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.gguf_header import StoredTensor, read_header
from jaxsearchrl.models.architecture import (
    Architecture,
    Family,
    Rope,
    check_architecture,
    yarn_attention_factor,
)
from jaxsearchrl.models.config_values import integer, number
from jaxsearchrl.models.fingerprint import fingerprint, same_rows, sample_rows
from jaxsearchrl.models.rope import rope_frequencies

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
TOP = {"token_embd.weight": EMBEDDING, "output.weight": HEAD, "output_norm.weight": NORM}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
STOP_IDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
FLOATS = ("F32", "F16", "BF16")
SAME_MATRIX = 0.2  # relative distance; two quantisations of one matrix lie below 0.1, two unrelated ones near 1.4
SAME_MATRIX_ROWS = 256


class GgufCheckpoint:
    """A .gguf file. Raises UserError when it cannot be read, ConfigError when its architecture is not supported."""

    def __init__(self, path: Path):
        metadata, tensors = read_header(path)
        self._path = path
        self._tensors = {hf_name(name): tensor for name, tensor in tensors.items()}
        factors = self._tensors.pop(ROPE_FACTORS, None)
        if HEAD in self._tensors and self._head_is_embedding():
            head = self._tensors.pop(HEAD)
            if head.bytes_per_weight > self._tensors[EMBEDDING].bytes_per_weight:
                self._tensors[EMBEDDING] = head
        self.architecture = architecture_from_gguf(
            metadata,
            {name: self.shape(name) for name in self._tensors},
            None if factors is None else _dequantise(factors, factors.data, path),
            str(path),
        )

    @property
    def fingerprint(self) -> str:
        """sha256 over the architecture, tensor names, shapes and sampled bytes."""
        parts = []
        for name, tensor in self._tensors.items():
            sampled = tensor.data[sample_rows(tensor.shape)].tobytes()
            parts.append((name, tensor.shape, tensor.kind.name, sampled))
        return fingerprint(self.architecture, parts)

    def names(self) -> set[str]:
        """Hugging Face names; a tensor without one keeps its own."""
        return set(self._tensors)

    def stored_name(self, name: str) -> str:
        """The name itself: what is written of a .gguf file has Hugging Face names."""
        return name

    def beside(self) -> Iterator[tuple[str, np.ndarray]]:
        """Nothing."""
        return iter(())

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape in Hugging Face's order, linears [out, in]."""
        return self._tensors[name].shape

    def tensor(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Reads a tensor's rows in `index`, then cuts the other axes; float32, q and k rows in Hugging Face's order."""
        stored, order = self._tensors[name], self._row_order(name)
        if len(stored.shape) == 1:  # its only axis is packed
            return _dequantise(stored, stored.data, self._path)[order][index]
        return _dequantise(stored, stored.data[order][index[:1]], self._path)[(slice(None), *index[1:])]

    def packed(self, name: str, index: tuple[slice, ...] = ()) -> None:
        """No tensor is read in MXFP4."""

    def _row_order(self, name: str) -> np.ndarray | slice:
        """Which of the stored rows are Hugging Face's rows 0, 1, ..."""
        heads = {".q_proj.": self.architecture.heads, ".k_proj.": self.architecture.kv_heads}
        permuted = [linear for linear in heads if linear in name and self.architecture.family == "llama"]
        return _halves(np.arange(self.shape(name)[0]), heads[permuted[0]]) if permuted else slice(None)

    def _head_is_embedding(self) -> bool:
        """Whether the head is the embedding once more: all of it, or in another quantisation about it on many rows."""
        if EMBEDDING not in self._tensors or self.shape(HEAD) != self.shape(EMBEDDING):
            return False
        head, embedding = self._tensors[HEAD], self._tensors[EMBEDDING]
        if head.kind == embedding.kind:
            return same_rows(lambda rows: head.data[rows], lambda rows: embedding.data[rows], head.shape[0])

        def values(tensor: StoredTensor, rows: list[int] | slice) -> np.ndarray:
            return _dequantise(tensor, tensor.data[rows], self._path)

        if head.kind.name in FLOATS and embedding.kind.name in FLOATS:
            return same_rows(lambda rows: values(head, rows), lambda rows: values(embedding, rows), head.shape[0])
        chosen = sample_rows(head.shape, SAME_MATRIX_ROWS)
        ours, other = values(head, chosen), values(embedding, chosen)
        return float(np.linalg.norm(ours - other)) < SAME_MATRIX * float(np.linalg.norm(ours))


def hf_name(name: str) -> str:
    """ "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; an unknown name stays as it is."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match and match[2] in IN_LAYER:
        return f"model.layers.{match[1]}.{IN_LAYER[match[2]]}.{match[3]}"
    return TOP.get(name, name)


def architecture_from_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], rope_factors: np.ndarray | None, where: str
) -> Architecture:
    """Reads the file's key-value metadata and, for what it does not say, the tensors' Hugging Face names and `shapes`.

    rope_factors: [H/2], by which Llama 3 divides its frequencies, or None. Raises ConfigError naming the key.
    """
    family = metadata.get("general.architecture", "")
    if family not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise ConfigError(f"{where}: general.architecture {family!r} is not supported; known: {known}")

    def whole(key: str, default: int | None = None) -> int:
        return integer(metadata, f"{family}.{key}", where, default)

    for key, harmless in (
        ("split.count", (0, 1)),
        (f"{family}.expert_count", (0,)),
        (f"{family}.attention.sliding_window", (0,)),
    ):
        if metadata.get(key, 0) not in harmless:
            raise ConfigError(f"{where}: {key} is {metadata[key]!r}, which is not supported")
    if EMBEDDING not in shapes:
        raise UserError(f"{where}: tensor token_embd.weight is missing")
    d_model, heads = whole("embedding_length"), whole("attention.head_count")
    head_dim = whole("attention.key_length", d_model // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if whole(key, head_dim) != head_dim:
            raise ConfigError(
                f"{where}: {family}.{key} is {whole(key)}, but only the head size {head_dim} is supported"
            )
    listed = metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(listed, list):
        raise ConfigError(f"{where}: tokenizer.ggml.tokens is {listed!r}, but must be a list")
    vocab_size = shapes[EMBEDDING][0]  # rows, padding included: metadata counts may leave the padding out
    tokens = max(len(listed), whole("vocab_size", vocab_size))
    if tokens > vocab_size:
        raise ConfigError(f"{where}: {tokens} tokens, but token_embd has {vocab_size} rows")
    layer = "model.layers.0."
    arch = Architecture(
        family=metadata["general.architecture"],
        vocab_size=vocab_size,
        d_model=d_model,
        layers=whole("block_count"),
        heads=heads,
        kv_heads=whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        mlp_dim=whole("feed_forward_length"),
        norm_eps=number(metadata, f"{family}.attention.layer_norm_rms_epsilon", where, above=0),
        tied=HEAD not in shapes,
        qkv_bias=f"{layer}self_attn.q_proj.bias" in shapes,
        o_bias=f"{layer}self_attn.o_proj.bias" in shapes,
        mlp_bias=f"{layer}mlp.up_proj.bias" in shapes,
        max_positions=whole("context_length"),
        rope=_rope_from_gguf(metadata, family, whole("context_length"), where),
        eos_ids=tuple(dict.fromkeys(integer(metadata, key, where, least=0) for key in STOP_IDS if key in metadata)),
        qk_norm=f"{layer}self_attn.q_norm.weight" in shapes,
    )
    return _with_rope_factors(check_architecture(arch, where), rope_factors, where)


def _rope_from_gguf(metadata: Mapping[str, Any], family: str, max_positions: int, where: str) -> Rope:
    theta = number(metadata, f"{family}.rope.freq_base", where, 10000.0, above=1)
    prefix = f"{family}.rope.scal"  # rope.scaling.* and the old rope.scale_linear
    given = {k.removeprefix(f"{family}.rope.scaling."): v for k, v in metadata.items() if k.startswith(prefix)}
    known = {"type", "factor", "original_context_length", "finetuned"}
    if unknown := sorted(given.keys() - known):
        raise ConfigError(f"{where}: rope scaling by {unknown[0]} is not supported; known: {', '.join(sorted(known))}")
    kind = given.get("type", "linear" if "factor" in given else "none")  # llama.cpp's default is linear
    if kind == "none":
        return Rope(theta)
    factor = number(metadata, f"{family}.rope.scaling.factor", where, 1.0) or 1.0  # to llama.cpp, 0 says nothing
    if factor < 1:
        raise ConfigError(f"{where}: {family}.rope.scaling.factor is {factor}, but must be at least 1")
    original = integer(metadata, f"{family}.rope.scaling.original_context_length", where, max_positions)
    if kind == "linear":
        return Rope(theta, "linear", factor, original)
    if kind == "yarn":
        return Rope(theta, "yarn", factor, original, attention_factor=yarn_attention_factor(factor))
    raise ConfigError(f"{where}: {family}.rope.scaling.type {kind!r} is not supported; known: none, linear, yarn")


def _with_rope_factors(arch: Architecture, factors: np.ndarray | None, where: str) -> Architecture:
    """Recognises the published Llama 3 rule behind the tensor of factors; refuses any other tensor."""
    if factors is None:
        return arch
    rope = Rope(arch.rope.theta, "llama3", float(factors.max()), 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    stretched = replace(arch, rope=rope)
    follows = arch.rope.kind == "default" and factors.shape == (arch.head_dim // 2,)
    if follows:  # only now is the head size known to be true, and its frequencies few
        plain = rope_frequencies(replace(arch, rope=Rope(arch.rope.theta)))[0]
        follows = np.allclose(factors, plain / rope_frequencies(stretched)[0], rtol=1e-3)
    if not follows:
        raise ConfigError(
            f"{where}: tensor {ROPE_FACTORS} does not follow the Llama 3 rule (8192 positions, factors 1, 4)"
        )
    return stretched


def _dequantise(tensor: StoredTensor, data: np.ndarray, path: Path) -> np.ndarray:
    """`data`: rows of the tensor as stored. Returns float32."""
    try:
        return np.asarray(gguf.quants.dequantize(data, tensor.kind), np.float32)
    except NotImplementedError as error:
        raise UserError(
            f"{path}: tensor {tensor.name} is stored as {tensor.kind.name}, which cannot be read"
        ) from error


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from pairs (0, H/2, 1, H/2 + 1, ...) back to halves (0, 1, ..., H - 1)."""
    return rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
