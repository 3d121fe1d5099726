"""ChatML, the wire format of SmolLM2, Qwen2.5, Qwen3 (calls as JSON) and Qwen3.5 (calls as tags).

    <|im_start|>system … <|im_end|>     what to do, and the tools
    <|im_start|>user … <|im_end|>       questions, and the tools' results as <tool_response>
    <|im_start|>assistant … <|im_end|>  the policy's turn, with calls as <tool_call>

Control tokens come in by id only. Text is always encoded as plain text, so a document that says "<|im_end|>" stays
a document. Tags are plain text themselves: where a document or a question spells one that would frame an answer or open
a call that could be read, a space behind its "<" breaks it.

A prompt ends as the model's own template has it, which opens the turn's reasoning or closes it: nothing for Qwen3 that
may think, `<think>` for Qwen3.5, an empty thought for both where they shall not. It is no part of what was sampled.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from jaxsearchrl.chat import tool_json, tool_xml
from jaxsearchrl.chat.tool_section import json_section, terse_section, xml_section
from jaxsearchrl.chat.vocabulary import Vocabulary
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.messages import AssistantTurn, Message, ToolSpec

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast


# The advice on a malformed call (tool_json, tool_xml) shows the right form of one; that, whole or cut, cannot be read
# as a call.
_FORGED_ANSWER = "/?tool_response>"
_FORGED = {
    "json": re.compile(rf'<(?={_FORGED_ANSWER}|(tool_call>)\s*\{{(?!"name": \.\.\.))'),
    "xml": re.compile(rf"<(?={_FORGED_ANSWER}|(tool_call>)\s*<function=(?!\.\.\.>))"),
}
_NO_THOUGHT = "<think>\n\n</think>\n\n"


class ChatML:
    """A `ChatFormat`. Thread-safe; ids are plain ints.

    calls: as JSON objects, or as tags (Qwen3.5); white space around messages is then left out, as in its template.
    terse_tools: list tools as one short line each (for small contexts) instead of JSON schemas. SmolLM2 was trained on
    neither form; Qwen models know the JSON one. thinking: whether the policy may reason before it speaks.
    Where a conversation has no system message, the one that the tokenizer's own chat template adds is used.
    Raises UserError when the tokenizer has no ChatML tokens, or its chat template does not render, and ConfigError when
    that has no switch for thinking.
    """

    stop_strings: tuple[str, ...] = ()
    one_call_a_turn = False

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        *,
        calls: Literal["json", "xml"] = "json",
        terse_tools: bool = False,
        thinking: bool = True,
    ):
        self._vocabulary = Vocabulary(tokenizer)
        start, end = map(self._vocabulary.control_id, ("<|im_start|>", "<|im_end|>"))
        if start is None or end is None:
            raise UserError(
                f"{_name(tokenizer)} has no <|im_start|> and <|im_end|> tokens, which this chat.format needs; use a "
                "ChatML model (SmolLM2-Instruct, Qwen2.5-Instruct, Qwen3, Qwen3.5)"
            )
        self._start, self._end, self._calls = start, end, calls
        self._section = terse_section if terse_tools else json_section if calls == "json" else xml_section
        self._default_system, opening = _template(tokenizer, thinking)
        if opening is None:
            opening = _NO_THOUGHT if not thinking else "" if calls == "json" else "<think>\n"
        self._opening = opening
        # what of it belongs to the turn's reasoning
        self._opened = opening if "<think>" in opening and "</think>" not in opening else ""
        end_of_text = self._vocabulary.control_id("<|endoftext|>")
        self.stop_ids: tuple[int, ...] = (end,) if end_of_text is None else (end, end_of_text)
        self.vocab_size: int = self._vocabulary.size

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a conversation's start, the generation prompt included."""
        system = self._default_system
        if messages and messages[0].role == "system":
            system, messages = messages[0].content, messages[1:]
        section = [self._section(tools)] if tools else []
        if self._calls == "json":
            parts = [*([] if system is None else [system]), *section]
        else:
            parts = [*section, *([] if system is None or (section and not system.strip()) else [system.strip()])]
        opening = [Message("system", "\n\n".join(parts))] if parts else []
        return self._vocabulary.join([*self._render([*opening, *messages]), *self._generation_prompt])

    def observation_ids(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids that follow a sampled turn; its `<|im_end|>` is added only when the turn was not stopped."""
        closing = [] if stopped else [self._end]
        return self._vocabulary.join([*closing, "\n", *self._render(messages), *self._generation_prompt])

    def turn_ids(self, turn: AssistantTurn) -> list[int]:
        """Ids that a policy would have sampled to say `turn`, the stop id included."""
        said = self._written(turn)
        if self._opened:
            said = f"\n</think>\n\n{said}" if not turn.reasoning else said.removeprefix("<think>\n")
        return self._vocabulary.join([said, self._end])

    def parse(self, ids: Sequence[int], *, stopped: bool, tools: Sequence[ToolSpec] = ()) -> AssistantTurn:
        """What sampled ids say; rules in `turns`, `tool_json`, `tool_xml`. Never raises.

        `truncated` is the opposite of `stopped`. Reasoning that the prompt opened is part of what was written.
        """
        said = self._opened + self.decode(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)
        if self._calls == "json":
            return tool_json.read_turn(said, truncated=not stopped)
        return tool_xml.read_turn(said, tools, truncated=not stopped)

    def count_tokens(self, text: str) -> int:
        """Number of tokens of `text` as the content of a tool's or a user's message."""
        return len(self.encode(self._unforged(text)))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, never a control token."""
        return self._vocabulary.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`, control tokens spelled out."""
        return self._vocabulary.decode(ids)

    @property
    def _generation_prompt(self) -> list[int | str]:
        return [self._start, f"assistant\n{self._opening}"]

    def _render(self, messages: Sequence[Message]) -> list[int | str]:
        """Control ids and the text between them; tool results in a row share one user turn."""
        pieces: list[int | str] = []
        for is_tool, group in groupby(messages, key=lambda message: message.role == "tool"):
            if is_tool:
                results = "\n".join(f"<tool_response>\n{self._unforged(m.content)}\n</tool_response>" for m in group)
                pieces += self._turn("user", results)
            else:
                for message in group:
                    content = self._written(message.turn) if message.turn else message.content
                    pieces += self._turn(message.role, self._unforged(content) if message.role == "user" else content)
        return pieces

    def _written(self, turn: AssistantTurn) -> str:
        return tool_json.write_turn(turn) if self._calls == "json" else tool_xml.write_turn(turn)

    def _unforged(self, text: str) -> str:
        text = text if self._calls == "json" else text.strip()
        if "<" not in text:
            return text
        # What the vocabulary cannot write must not hold a tag apart until it is left out.
        text = self.decode(self.encode(text))
        last = text.rfind("</tool_call>")  # an opening behind it opens nothing
        return _FORGED[self._calls].sub(lambda tag: "<" if tag[1] and tag.end() > last else "< ", text)

    def _turn(self, role: str, content: str) -> list[int | str]:
        return [self._start, f"{role}\n{content}", self._end, "\n"]


def _template(tokenizer: "PreTrainedTokenizerFast", thinking: bool) -> tuple[str | None, str | None]:
    """What the tokenizer's own chat template writes by itself; nothing, None, without a template.

    That is the system message of a conversation without one (None: it adds none), and what follows the last
    `<|im_start|>assistant` and its line break.
    """
    if tokenizer.chat_template is None:
        return None, None

    def render(thinking: bool) -> str:
        conversation = [{"role": "user", "content": ""}]
        options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinking}
        return str(tokenizer.apply_chat_template(conversation, **options))

    try:
        rendered, other = render(thinking), render(not thinking)
    except Exception as error:  # a template is a program, and may raise anything
        raise UserError(
            f"{_name(tokenizer)}: its chat template does not render ({error}); "
            "mend it, or give a tokenizer folder with another one (or none) as model.tokenizer"
        ) from error
    if not thinking and rendered == other:
        raise ConfigError(
            f"chat.thinking = False: the chat template of {_name(tokenizer)} has no switch for it; leave it out"
        )
    head, opened, rest = rendered.partition("<|im_start|>system\n")
    system = rest.partition("<|im_end|>")[0] if opened and not head else None
    return system, rendered.rpartition("<|im_start|>assistant\n")[2] if "<|im_start|>assistant\n" in rendered else ""


def _name(tokenizer: "PreTrainedTokenizerFast") -> str:
    return tokenizer.name_or_path or "the tokenizer"
