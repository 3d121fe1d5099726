"""A tokenizer as chat formats use it: plain text never becomes a control token, and decoding changes nothing."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from jaxsearchrl.text import well_formed

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast


class Vocabulary:
    """Thread-safe; ids are plain ints. `size` is the largest usable id + 1."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast"):
        from tokenizers import Tokenizer

        # A copy of our own: the shared tokenizer's switch for special tokens can be turned by anyone.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.encode_special_tokens = True
        self._control = {i for i, t in self._backend.get_added_tokens_decoder().items() if t.special}
        self.size: int = max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    def control_id(self, token: str) -> int | None:
        """The id of a control token; None where there is none of this name."""
        token_id = self._backend.token_to_id(token)
        return token_id if token_id in self._control else None

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: control tokens spelled in it are split into ordinary pieces.

        What the vocabulary cannot write is left out (SmolLM2 lacks six ASCII control characters and two unassigned
        planes); half a surrogate pair becomes U+FFFD.
        """
        ids = self._backend.encode(well_formed(text), add_special_tokens=False).ids
        return [i for i in ids if i not in self._control]  # some vocabularies use a control token for the unknown

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`, control tokens spelled out; bytes that are no complete character become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def join(self, pieces: Iterable[int | str]) -> list[int]:
        """Ids of control tokens, given by id, and of the plain text between them."""
        ids: list[int] = []
        for piece in pieces:
            ids += [piece] if isinstance(piece, int) else self.encode(piece)
        return ids
