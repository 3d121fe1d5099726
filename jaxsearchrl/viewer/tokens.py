"""Tokens as text, one by one."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.data.assets import SMOLLM2_FILE, cache_dir
from jaxsearchrl.errors import UserError

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast


class TokenTexts:
    """What each id stands for, by a tokenizer that is loaded when it is first wanted."""

    def __init__(self, path: str) -> None:
        self._path = cache_dir() / "models" / SMOLLM2_FILE if path == "demo" else Path(path)
        self._lock = threading.Lock()
        self._tokenizer: PreTrainedTokenizerFast | None = None
        self._special: frozenset[int] = frozenset()
        self._known: dict[int, str] = {}
        self.fault = "" if path else "the run has no config.json that names a tokenizer"

    def texts(self, ids: Iterable[int]) -> list[str]:
        """A text for each id; "" for all where there is no tokenizer (`fault` says why)."""
        ids = list(ids)
        with self._lock:
            if self._tokenizer is None and not self.fault:
                self._load()
            tokenizer = self._tokenizer
            if tokenizer is None:
                return [""] * len(ids)
            for token in set(ids) - self._known.keys():
                self._known[token] = _decoded(tokenizer, token)
            return [self._known[token] for token in ids]

    def special(self, token: int) -> bool:
        """Whether the id is a control token, which no text spells."""
        return token in self._special

    def _load(self) -> None:
        try:
            tokenizer = load_tokenizer(self._path)
        except (UserError, OSError) as error:
            self.fault = str(error)
            return
        added = tokenizer.added_tokens_decoder
        self._special = frozenset(token for token, how in added.items() if how.special)
        self._tokenizer = tokenizer


def _decoded(tokenizer: "PreTrainedTokenizerFast", token: int) -> str:
    """Part of a character comes as its bytes' names, an id beyond the vocabulary as nothing."""
    try:
        text = tokenizer.decode([token], skip_special_tokens=False)
    except (IndexError, OverflowError, TypeError):
        return ""
    if isinstance(text, str) and "\ufffd" not in text:
        return text
    return str(tokenizer.convert_ids_to_tokens(token) or "")
