"""Search-R1's wire format: a whole episode is one assistant message, and actions are tags in plain text.

    <think> … </think> <search> query </search>      a turn of the policy, which ends at the closing tag
    <information> … </information>                   what answers a search, spliced in without a change of role
    <think> … </think> <answer> … </answer>          the last turn

The prompt comes from the model's own chat format. No tag is a special token. A turn's action is its first
`<search>…</search>` or `<answer>…</answer>`, wherever it stands, also inside `<think>`. A turn that ends by an
end-of-text token has no action unless it wrote one before; that token stays in the trajectory, as everything sampled
does. After Jin et al., arXiv:2503.09516, and its code (Apache-2.0), which re-tokenises each turn; here nothing is.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxsearchrl.chat.chatml import ChatML
from jaxsearchrl.messages import AssistantTurn, MalformedCall, Message, ToolCall, ToolSpec

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedTokenizerFast

_OPENED = re.compile(r"<(search|answer)>")
_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)
# What a document must not say: it could close its own frame and speak as the policy.
_TAG = re.compile(r"<(?=/?(?:think|search|information|answer)>)")


class SearchR1Tags:
    """A `ChatFormat`. Messages of the role "tool" are documents, those of the role "user" notes of the environment.

    A call of a turn is `search(query)` or `answer(text)`. Its `text` is all that the turn says, tags included.
    """

    stop_strings: tuple[str, ...] = ("</search>", "</answer>")
    one_call_a_turn = True

    def __init__(self, tokenizer: "PreTrainedTokenizerFast"):
        """Raises UserError for a tokenizer without ChatML tokens, as `ChatML` does."""
        self._chatml = ChatML(tokenizer)
        self.stop_ids, self.vocab_size = self._chatml.stop_ids, self._chatml.vocab_size

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a conversation's start; tools are described by the prompt's own words, so there must be none here."""
        assert not tools, "Search-R1 tells of its tags in the question's message"
        return self._chatml.prompt_ids(messages, ())

    def observation_ids(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids of what is spliced in after a turn; no role changes, and nothing of the turn is closed."""
        return self._chatml.encode("".join(self._spliced(message) for message in messages))

    def turn_ids(self, turn: AssistantTurn) -> list[int]:
        """Ids that a policy would have sampled to say `turn.text`."""
        return self._chatml.encode(turn.text)

    def parse(self, ids: Sequence[int], *, stopped: bool, tools: Sequence[ToolSpec] = ()) -> AssistantTurn:
        """What sampled ids say. Never raises. truncated: neither a closing tag nor an end-of-text token ended it."""
        said = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return read_turn(self.decode(said), truncated=not stopped)

    def count_tokens(self, text: str) -> int:
        """Number of tokens of `text` as a document."""
        return len(self._chatml.encode(self._unforged(text)))

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of `ids`."""
        return self._chatml.decode(ids)

    def _spliced(self, message: Message) -> str:
        if message.role == "tool":
            return f"\n\n<information>{self._unforged(message.content)}</information>\n\n"
        return f"\n{message.content}\n"

    def _unforged(self, text: str) -> str:
        # What the vocabulary cannot write must not hold a tag apart until it is left out.
        return _TAG.sub("< ", self.decode(self._chatml.encode(text))) if "<" in text else text


def read_turn(text: str, *, truncated: bool) -> AssistantTurn:
    """The turn that a text is. Never raises: a tag that was opened and not closed is a `MalformedCall`."""
    reasoning = "\n".join(thought.strip() for thought in _THOUGHT.findall(text) if thought.strip())
    call: ToolCall | MalformedCall | None = None
    actions = [action for action in (_first(text, "search"), _first(text, "answer")) if action]
    if actions:
        _, name, content = min(actions)
        call = ToolCall(name, {"query" if name == "search" else "text": content})
    elif opened := _OPENED.search(text):
        cut = "the token limit cut it off" if truncated else f"</{opened[1]}> is missing"
        call = MalformedCall(text[opened.start() :], f"This action was not carried out: {cut}.")
    return AssistantTurn(text, reasoning, (call,) if call else (), truncated)


def _first(text: str, name: str) -> tuple[int, str, str] | None:
    """Where the first whole action of a name starts, the name, what stands in it."""
    start = text.find(f"<{name}>")
    content = start + len(f"<{name}>")
    end = text.find(f"</{name}>", content)
    return None if start < 0 or end < 0 else (start, name, text[content:end].strip())
