"""ChatML with JSON tool calls: the wire format of SmolLM2, Qwen2.5 and Qwen3.

    <|im_start|>system … <|im_end|>     what to do, and the tools
    <|im_start|>user … <|im_end|>       questions, and the tools' results as <tool_response>
    <|im_start|>assistant … <|im_end|>  the policy's turn, with calls as <tool_call>

Control tokens come in by id only. Text is always encoded as plain text, so a document that says "<|im_end|>" stays
a document. Tags are plain text themselves: where a document or a question spells one that would frame an answer or open
a call that could be read, a space behind its "<" breaks it.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from jaxsearchrl.chat.tool_json import read_turn, write_turn
from jaxsearchrl.chat.tool_section import json_section, terse_section
from jaxsearchrl.errors import UserError
from jaxsearchrl.messages import AssistantTurn, Message, ToolSpec
from jaxsearchrl.text import well_formed

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast


# The advice on a malformed call (tool_json) shows the right form of one; that, whole or cut, cannot be read as a call.
_FORGED = re.compile(r'<(?=/?tool_response>|(tool_call>)\s*\{(?!"name": \.\.\.))')


class ChatML:
    """A `ChatFormat`. Thread-safe; ids are plain ints.

    terse_tools: list tools as one short line each (for small contexts) instead of JSON schemas. SmolLM2 was trained on
    neither form; Qwen models know the JSON one.
    Where a conversation has no system message, the one that the tokenizer's own chat template adds is used.
    Raises UserError when the tokenizer has no ChatML tokens, or its chat template does not render.
    """

    stop_strings: tuple[str, ...] = ()

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, terse_tools: bool = False):
        from tokenizers import Tokenizer

        # A copy of our own: the shared tokenizer's switch for special tokens can be turned by anyone.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.encode_special_tokens = True
        self._control = {i for i, t in self._backend.get_added_tokens_decoder().items() if t.special}
        start, end = self._control_id("<|im_start|>"), self._control_id("<|im_end|>")
        if start is None or end is None:
            raise UserError(
                f"{tokenizer.name_or_path or 'the tokenizer'} has no <|im_start|> and <|im_end|> tokens, "
                'which chat.format "chatml" needs; use a ChatML model (SmolLM2-Instruct, Qwen2.5-Instruct, Qwen3)'
            )
        self._start, self._end = start, end
        self._section = terse_section if terse_tools else json_section
        self._default_system = _default_system(tokenizer)
        end_of_text = self._control_id("<|endoftext|>")
        self.stop_ids: tuple[int, ...] = (end,) if end_of_text is None else (end, end_of_text)
        self.vocab_size: int = max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a conversation's start, the generation prompt included."""
        system = self._default_system
        if messages and messages[0].role == "system":
            system, messages = messages[0].content, messages[1:]
        section = self._section(tools) if tools else None
        parts = [part for part in (system, section) if part is not None]
        opening = [Message("system", "\n\n".join(parts))] if parts else []
        return self._ids([*self._render([*opening, *messages]), *self._generation_prompt])

    def observation_ids(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids that follow a sampled turn; its `<|im_end|>` is added only when the turn was not stopped."""
        closing = [] if stopped else [self._end]
        return self._ids([*closing, "\n", *self._render(messages), *self._generation_prompt])

    def turn_ids(self, turn: AssistantTurn) -> list[int]:
        """Ids that a policy would have sampled to say `turn`, the stop id included."""
        return self._ids([write_turn(turn), self._end])

    def parse(self, ids: Sequence[int], *, stopped: bool) -> AssistantTurn:
        """What sampled ids say; rules in `tool_json`. Never raises. `truncated` is the opposite of `stopped`."""
        said = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return read_turn(self.decode(said), truncated=not stopped)

    def count_tokens(self, text: str) -> int:
        """Number of tokens of `text` as the content of a tool's or a user's message."""
        return len(self.encode(self._unforged(text)))

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

    @property
    def _generation_prompt(self) -> list[int | str]:
        return [self._start, "assistant\n"]

    def _render(self, messages: Sequence[Message]) -> list[int | str]:
        """Control ids and the text between them; tool results in a row share one user turn."""
        pieces: list[int | str] = []
        for is_tool, group in groupby(messages, key=lambda message: message.role == "tool"):
            if is_tool:
                results = "\n".join(f"<tool_response>\n{self._unforged(m.content)}\n</tool_response>" for m in group)
                pieces += self._turn("user", results)
            else:
                for message in group:
                    content = write_turn(message.turn) if message.turn else message.content
                    pieces += self._turn(message.role, self._unforged(content) if message.role == "user" else content)
        return pieces

    def _unforged(self, text: str) -> str:
        if "<" not in text:
            return text
        # What the vocabulary cannot write must not hold a tag apart until it is left out.
        text = self.decode(self.encode(text))
        last = text.rfind("</tool_call>")  # an opening behind it opens nothing
        return _FORGED.sub(lambda tag: "<" if tag[1] and tag.end() > last else "< ", text)

    def _turn(self, role: str, content: str) -> list[int | str]:
        return [self._start, f"{role}\n{content}", self._end, "\n"]

    def _ids(self, pieces: Iterable[int | str]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            ids += [piece] if isinstance(piece, int) else self.encode(piece)
        return ids

    def _control_id(self, token: str) -> int | None:
        token_id = self._backend.token_to_id(token)
        return token_id if token_id in self._control else None


def _default_system(tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """The system message that the tokenizer's own template adds to a conversation without one, if it does."""
    if tokenizer.chat_template is None:
        return None
    try:
        rendered = str(tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False))
    except Exception as error:  # a template is a program, and may raise anything
        raise UserError(
            f"{tokenizer.name_or_path or 'the tokenizer'}: its chat template does not render ({error}); "
            "mend it, or give a tokenizer folder with another one (or none) as model.tokenizer"
        ) from error
    head, opened, rest = rendered.partition("<|im_start|>system\n")
    return rest.partition("<|im_end|>")[0] if opened and not head else None
