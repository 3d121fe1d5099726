"""Loads a tokenizer from a Hugging Face folder or from the metadata of a .gguf file. Nothing is downloaded."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.gguf_header import read_header

if TYPE_CHECKING:  # transformers takes seconds to import
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast

# Kinds of token in GGUF's `tokenizer.ggml.token_type`.
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerFast":
    """The tokenizer of a Hugging Face folder or of a .gguf file, with decoding that never tidies up spaces.

    Raises UserError when there is none at `path`, or when its kind is not supported.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        return _from_gguf(path)
    if not path.is_dir():
        raise UserError(f"{path}: neither a folder with a tokenizer nor a .gguf file")
    return _from_folder(path)


def _from_folder(path: Path) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not (path / "tokenizer.json").is_file():
        raise UserError(f"{path}: no tokenizer.json; save the model's fast tokenizer there (save_pretrained)")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, clean_up_tokenization_spaces=False)
    except Exception as error:  # whatever a damaged file makes transformers raise
        raise UserError(f"{path}: the tokenizer cannot be loaded: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"{path}: a {type(tokenizer).__name__}, but only fast tokenizers are supported")
    return tokenizer


def _from_gguf(path: Path) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    metadata = read_header(path)[0]
    tokens: list[str] = _require(metadata, "tokenizer.ggml.tokens", path)

    def named(role: str) -> str | None:
        token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if token_id is not None and token_id >= len(tokens):
            raise UserError(f"{path}: tokenizer.ggml.{role}_token_id is {token_id}, but there are {len(tokens)} tokens")
        return None if token_id is None else tokens[token_id]

    return PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(metadata, path),
        bos_token=named("bos"),
        eos_token=named("eos"),
        pad_token=named("padding"),
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )


def _byte_level_bpe(metadata: dict[str, Any], path: Path) -> "Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    model = _require(metadata, "tokenizer.ggml.model", path)
    if model != "gpt2":
        raise UserError(f'{path}: tokenizer.ggml.model is "{model}", but only "gpt2" (byte-level BPE) is supported')
    tokens: list[str] = _require(metadata, "tokenizer.ggml.tokens", path)
    kinds: list[int] = _require(metadata, "tokenizer.ggml.token_type", path)
    if len(kinds) != len(tokens):
        raise UserError(
            f"{path}: {len(tokens)} tokens but {len(kinds)} tokenizer.ggml.token_type; fetch the file again"
        )
    # Unused tokens only pad the embedding; they have no text and are never sampled.
    vocabulary = {token: i for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED}
    merges = [_merge(line, path) for line in _require(metadata, "tokenizer.ggml.merges", path)]
    pre = _require(metadata, "tokenizer.ggml.pre", path)

    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # tokenizers raises bare Exception
        raise UserError(f"{path}: vocabulary and merges do not fit together: {error}") from error
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, path)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    added = [
        AddedToken(token, special=kind == _CONTROL, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def _pre_tokenizer(pre: str, path: Path) -> "PreTokenizer":
    from tokenizers import Regex, pre_tokenizers

    if pre == "smollm":
        # Digits are isolated before the GPT-2 split, so that the space before a number is a piece of its own.
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    if pre == "qwen2":
        split = pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise UserError(
        f'{path}: tokenizer.ggml.pre is "{pre}", but only "smollm" and "qwen2" are known; '
        "give the model's Hugging Face tokenizer folder as model.tokenizer instead"
    )


def _merge(line: str, path: Path) -> tuple[str, str]:
    left, space, right = line.partition(" ")
    if not (left and space and right):
        raise UserError(f"{path}: a merge is not two tokens: {line!r}")
    return left, right


def _require(metadata: dict[str, Any], key: str, path: Path) -> Any:
    if key not in metadata:
        raise UserError(f"{path}: no {key} in the file's metadata; give a tokenizer folder as model.tokenizer instead")
    return metadata[key]
