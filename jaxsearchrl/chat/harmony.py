"""Harmony, the wire format of gpt-oss: messages with a header, each on a channel.

    <|start|>system<|message|> … <|end|>       date, reasoning effort, channels
    <|start|>developer<|message|> … <|end|>    what to do, and the tools
    <|start|>user<|message|> … <|end|>
    <|start|>assistant<|channel|>analysis<|message|> … <|end|>       reasoning
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|> … <|call|>
    <|start|>functions.NAME to=assistant<|channel|>commentary<|message|> … <|end|>
    <|start|>assistant<|channel|>final<|message|> … <|return|>

A turn of the policy is one or more messages, the first without its `<|start|>assistant`, which the prompt has. It ends
at `<|call|>` or `<|return|>`, so it has one call at most. What was sampled stays as it was sampled: `<|return|>`,
reasoning of earlier turns and all. Control tokens are control tokens by id only, in what is written and in what is
read: neither a document nor a policy can spell one.

Our rules, where the format's documentation leaves room (reading never raises):

* The recipient may stand in the role's or in the channel's part of the header, on any channel or on none; the type of
  the content (`json`), with `<|constrain|>`, without it or absent, is not looked at.
* Any header but `<|channel|>commentary to=functions.NAME <|constrain|>json` is counted (`off_form_calls`).
* A call is carried out only if `<|call|>` ends it and its content is a JSON object. A call that is not, a message whose
  header cannot be read, and one that speaks for another role are each a `MalformedCall`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jaxsearchrl.chat import untrusted_json
from jaxsearchrl.chat.turns import join_parts, refused
from jaxsearchrl.chat.typescript import namespace
from jaxsearchrl.chat.vocabulary import Vocabulary
from jaxsearchrl.errors import UserError
from jaxsearchrl.messages import AssistantTurn, MalformedCall, Message, ToolCall, ToolSpec

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast

_CHANNELS = ("analysis", "commentary", "final")
_TOOL = re.compile(r"functions\.(\S+)")
_RIGHT_FORM = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>"


@dataclass(frozen=True)
class _Written:
    """A message as it was sampled. `header` stands before `<|message|>`; content None: there is no `<|message|>`.

    first: the prompt has its role. stray: no `<|start|>` came before it. end: the token that ended it, if one did.
    """

    first: bool
    stray: bool
    header: tuple[int, ...]
    content: tuple[int, ...] | None
    end: int | None


@dataclass(frozen=True)
class _Header:
    channel: str = ""
    recipient: str = ""
    fault: str = ""


class Harmony:
    """A `ChatFormat`. Thread-safe; ids are plain ints.

    date: what the prompt says is today (YYYY-MM-DD), so that a run is the same on any day. reasoning: the effort.
    header: the system message; "routing" has neither of these, but only where calls go.
    Raises UserError when the tokenizer lacks one of the control tokens.
    """

    stop_strings: tuple[str, ...] = ()
    one_call_a_turn = True

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerFast",
        *,
        date: str,
        reasoning: Literal["low", "medium", "high"] = "medium",
        header: Literal["full", "routing"] = "full",
    ):
        self._vocabulary = Vocabulary(tokenizer)
        self._date, self._reasoning, self._whole_header = date, reasoning, header == "full"
        self._name = tokenizer.name_or_path or "the tokenizer"
        self._start, self._end, self._message = (self._id(f"<|{name}|>") for name in ("start", "end", "message"))
        self._channel, self._constrain = self._id("<|channel|>"), self._id("<|constrain|>")
        self._call, self._return = self._id("<|call|>"), self._id("<|return|>")
        self._assistant = tuple(self.encode("assistant"))
        end_of_text = self._vocabulary.control_id("<|endoftext|>")
        self.stop_ids: tuple[int, ...] = (self._call, self._return, *([] if end_of_text is None else [end_of_text]))
        self.vocab_size: int = self._vocabulary.size

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a conversation's start; a system message that it begins with is the developer's, with the tools."""
        instructions = ""
        if messages and messages[0].role == "system":
            instructions, messages = messages[0].content, messages[1:]
        pieces = [*self._system(tools), *self._developer(instructions, tools)]
        return self._vocabulary.join([*pieces, *self._render(messages), *self._generation_prompt])

    def observation_ids(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids that follow a sampled turn; an `<|end|>` closes a turn that was not stopped."""
        closing = [] if stopped else [self._end]
        return self._vocabulary.join([*closing, *self._render(messages), *self._generation_prompt])

    def turn_ids(self, turn: AssistantTurn) -> list[int]:
        """Ids that a policy would have sampled to say `turn`, which has one call at most, the stop id included."""
        return self._vocabulary.join(self._said(turn, self._return))

    def parse(self, ids: Sequence[int], *, stopped: bool, tools: Sequence[ToolSpec] = ()) -> AssistantTurn:
        """What sampled ids say. Never raises. `truncated` is the opposite of `stopped`."""
        reasoning: list[str] = []
        text: list[str] = []
        calls: list[ToolCall | MalformedCall] = []
        off_form, text_after_call = 0, False
        said = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        for message in self._messages(ids):
            header = self._header(message)
            cut = not stopped and message.end is None
            if message.content is None and cut and not header.recipient:
                continue  # before it was said what this would be
            if header.recipient or header.fault or message.content is None:
                calls.append(self._read_call(message, header, cut))
                off_form += isinstance(calls[-1], ToolCall) and not self._in_form(message, header)
            elif header.channel == "analysis":
                reasoning.append(self.decode(message.content))
            else:
                text.append(self.decode(message.content))
                text_after_call = text_after_call or bool(calls and text[-1].strip())
        return AssistantTurn(
            join_parts(text),
            join_parts(reasoning),
            tuple(calls),
            truncated=not stopped,
            text_after_call=text_after_call,
            off_form_calls=off_form,
            written=self.decode(said),
        )

    def count_tokens(self, text: str) -> int:
        """Number of tokens of `text` as the content of a tool's or a user's message."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, never a control token."""
        return self._vocabulary.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`, control tokens spelled out."""
        return self._vocabulary.decode(ids)

    def _messages(self, ids: Sequence[int]) -> Iterator[_Written]:
        """The messages of a turn, in order; nothing that was sampled is left out but what is empty."""
        ends = {self._end, *self.stop_ids}
        first, stray, header, content = True, False, [], None

        def message(end: int | None) -> _Written:
            return _Written(first, stray, tuple(header), None if content is None else tuple(content), end)

        for i in ids:
            if i == self._start:
                if header or content is not None:
                    yield message(None)
                first, stray, header, content = False, False, [], None
            elif i in ends:
                if header or content is not None:
                    yield message(i)
                first, stray, header, content = False, True, [], None
            elif content is not None:
                content.append(i)
            elif i == self._message:
                content = []
            else:
                header.append(i)
        if header or content is not None:
            yield message(None)

    def _header(self, message: _Written) -> _Header:
        """What a header says: `ROLE [to=RECIPIENT] [CHANNEL [to=RECIPIENT] [TYPE]]`, a control token before CHANNEL."""
        in_prompt = self._assistant if message.first else ()
        role, *channels = map(self._words, _split((*in_prompt, *message.header), self._channel))
        words = [*role[1:], *(word for channel in channels for word in channel[1:])]
        recipients = {word.removeprefix("to=") for word in words if word.startswith("to=")}
        types = [word for word in words if not word.startswith("to=")]
        recipient = min(recipients, default="")
        channel = channels[0][0] if channels and channels[0] else ""
        if message.stray:
            fault = "it stands outside of a message; each starts with <|start|>assistant"
        elif role[:1] != ["assistant"]:
            fault = f"it speaks as {' '.join(role)[:40]!r}; only the assistant speaks in a turn"
        elif len(channels) > 1 or len(recipients) > 1 or len(types) > 1:
            fault = "its header has two channels, two recipients or words that do not belong there"
        elif channel not in _CHANNELS and (channels or not recipient):
            fault = f"its channel is {channel[:40]!r}, none of {', '.join(_CHANNELS)}"
        else:
            fault = ""
        return _Header(channel, recipient, fault)

    def _words(self, ids: Sequence[int]) -> list[str]:
        return [word for part in _split(ids, self._constrain) for word in self.decode(part).split()]

    def _read_call(self, message: _Written, header: _Header, cut: bool) -> ToolCall | MalformedCall:
        """The call, or what is wrong with a message that is none and can be nothing else."""
        tool = _TOOL.fullmatch(header.recipient)
        try:
            if message.content is None and not message.stray:
                raise ValueError("the token limit cut it off" if cut else "<|message|> is missing behind its header")
            if header.fault:
                raise ValueError(header.fault)
            if not tool:
                raise ValueError(f"its recipient is {header.recipient[:40]!r}, not functions.NAME")
            if cut:
                raise ValueError("the token limit cut it off")
            if message.end != self._call:
                found = "the next <|start|>" if message.end is None else self.decode([message.end])
                raise ValueError(f"it ends with {found}, not with <|call|>")
            arguments = untrusted_json.read(self.decode(message.content or ()))
            if not isinstance(arguments, dict):
                raise ValueError("it is not a JSON object")
            return ToolCall(tool[1], arguments)
        except ValueError as fault:
            return MalformedCall(self._as_written(message), refused(str(fault), _RIGHT_FORM))

    def _in_form(self, message: _Written, header: _Header) -> bool:
        """Whether a header is the one that the format's documentation shows for calls."""
        form = f"<|channel|>commentary to={header.recipient} <|constrain|>json"
        return self.decode(message.header) == ("" if message.first else "assistant") + form

    def _as_written(self, message: _Written) -> str:
        start = [] if message.first or message.stray else [self._start]
        content = [] if message.content is None else [self._message, *message.content]
        return self.decode([*start, *message.header, *content, *([] if message.end is None else [message.end])])

    @property
    def _generation_prompt(self) -> list[int | str]:
        return [self._start, "assistant"]

    def _system(self, tools: Sequence[ToolSpec]) -> list[int | str]:
        whole = (
            "You are ChatGPT, a large language model trained by OpenAI.\n"
            f"Knowledge cutoff: 2024-06\nCurrent date: {self._date}\n\nReasoning: {self._reasoning}\n\n"
            f"# Valid channels: {', '.join(_CHANNELS)}. Channel must be included for every message."
        )
        routing = "Calls to these tools must go to the commentary channel: 'functions'."
        parts = [whole] * self._whole_header + [routing] * bool(tools)
        return self._text("system", "\n".join(parts)) if parts else []

    def _developer(self, instructions: str, tools: Sequence[ToolSpec]) -> list[int | str]:
        parts = [f"# Instructions\n\n{instructions}"] if instructions else []
        parts += [f"# Tools\n\n## functions\n\n{namespace('functions', tools)}"] if tools else []
        return self._text("developer", "\n\n".join(parts)) if parts else []

    def _render(self, messages: Sequence[Message]) -> list[int | str]:
        """Control ids and the text between them. An answer without a tool's name comes from the namespace itself."""
        pieces: list[int | str] = []
        for message in messages:
            match message.role:
                case "tool":
                    author = f"functions.{message.name}" if message.name else "functions"
                    header = [self._start, f"{author} to=assistant", self._channel, "commentary"]
                    pieces += [*header, self._message, message.content, self._end]
                case "assistant":
                    said = self._said(message.turn or AssistantTurn(message.content), self._end)
                    pieces += [self._start, "assistant", *said]
                case "system":
                    pieces += self._developer(message.content, ())
                case "user":
                    pieces += self._text("user", message.content)
        return pieces

    def _text(self, role: str, content: str) -> list[int | str]:
        return [self._start, role, self._message, content, self._end]

    def _said(self, turn: AssistantTurn, end: int) -> list[int | str]:
        """A turn behind `<|start|>assistant`; `end` closes one without a call."""
        assert len(turn.calls) <= 1, "a turn of harmony ends with its first call"
        messages: list[list[int | str]] = []
        if turn.reasoning:
            messages.append([self._channel, "analysis", self._message, turn.reasoning])
        if turn.text or not turn.calls:
            messages.append([self._channel, "commentary" if turn.calls else "final", self._message, turn.text])
        for call in turn.calls:
            if isinstance(call, MalformedCall):
                messages.append([call.text])
                continue
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False, separators=(",", ":"))
            header = [self._channel, f"commentary to=functions.{call.name} ", self._constrain, "json"]
            messages.append([*header, self._message, arguments])
        between = [self._end, self._start, "assistant"]
        pieces = [piece for message in messages[:-1] for piece in (*message, *between)]
        return [*pieces, *messages[-1], self._call if turn.calls else end]

    def _id(self, token: str) -> int:
        token_id = self._vocabulary.control_id(token)
        if token_id is None:
            raise UserError(
                f'{self._name} has no {token} token, which chat.format "harmony" needs; use a gpt-oss model'
            )
        return token_id


def _split(ids: Sequence[int], at: int) -> list[tuple[int, ...]]:
    """The ids before, between and behind each `at`."""
    parts: list[list[int]] = [[]]
    for i in ids:
        if i == at:
            parts.append([])
        else:
            parts[-1].append(i)
    return [tuple(part) for part in parts]
