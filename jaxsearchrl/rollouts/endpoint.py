"""A model behind an OpenAI-compatible API as an agent: chat completions with function calls, over HTTP.

    POST {endpoint.url}/chat/completions   {"model", "messages", "temperature", "max_tokens", "tools"?}

Where a family has tools, calls are the API's function calls; where it has none (Search-R1's tags, sums), the message's
text is read as a policy's, up to its first stop string. What a server answers is untrusted: an answer of another form
is the infrastructure's failure, a call whose arguments are no JSON object is the model's, and is told to it.
"""

import json
from collections.abc import Sequence
from typing import Any

from jaxsearchrl.chat import untrusted_json
from jaxsearchrl.chat.format import ChatFormat
from jaxsearchrl.config import EndpointConfig
from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.messages import AssistantTurn, MalformedCall, Message, ToolCall, ToolSpec
from jaxsearchrl.search.counters import SearchCounters
from jaxsearchrl.search.remote.answers import Part
from jaxsearchrl.search.remote.http import Http
from jaxsearchrl.search.remote.open import secret
from jaxsearchrl.text import well_formed

KEY_VARIABLE = "JAXSEARCHRL_ENDPOINT_KEY"
MOST_CALLS = 128
"""Of a message; a server that answers with more is broken."""

Json = dict[str, Any]


class Endpoint:
    """The server. Thread-safe. max_tokens: of an answer.

    tries: requests at most, where one fails. An episode's are sent once: who plays it tries again, and counts failures.
    """

    def __init__(self, options: EndpointConfig, max_tokens: int, tries: int = 1):
        self._options, self._max_tokens = options, max_tokens
        self._http = Http(options.timeout, tries, SearchCounters())
        key = secret(KEY_VARIABLE)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def complete(self, messages: Sequence[Json], tools: Sequence[Json], temperature: float) -> Part:
        """The first choice of a completion. Raises InfrastructureError, which names the address."""
        body: Json = {
            "model": self._options.model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": self._max_tokens,
        }
        if tools:
            body["tools"] = tools
        url = f"{self._options.url.rstrip('/')}/chat/completions"
        choices = self._http.json("POST", url, body=body, headers=self._headers)["choices"].items(1)
        if not choices:
            raise InfrastructureError(f"{url}: the answer has no choice")
        return choices[0]

    def check(self) -> None:
        """Asks for a word, so that an endpoint that cannot be used is known before any episode. Raises UserError."""
        try:
            self.complete([{"role": "user", "content": "Say yes."}], (), 0.0)["message"]
        except InfrastructureError as error:
            raise UserError(
                f"the endpoint {self._options.url!r} gives no answer that serves: {error}; start the server, or "
                f"correct its url, the model's name, or the key in the environment variable {KEY_VARIABLE}"
            ) from error


class EndpointAgent:
    """Plays one episode. tools: the environment's; chat: reads texts where there are none."""

    def __init__(self, endpoint: Endpoint, tools: Sequence[ToolSpec], chat: ChatFormat, temperature: float):
        self._endpoint, self._chat, self._temperature = endpoint, chat, temperature
        self._tools = [_function(tool) for tool in tools]

    def act(self, messages: Sequence[Message]) -> AssistantTurn:
        """The turn that the server answers with. Raises InfrastructureError."""
        asked = _with_calls(messages) if self._tools else [*map(self._as_text, messages)]
        choice = self._endpoint.complete(asked, self._tools, self._temperature)
        message, ended = choice["message"], choice.get("finish_reason")
        truncated = ended is not None and ended.text() == "length"
        text = _text(message, "content")
        reasoning = _text(message, "reasoning_content") or _text(message, "reasoning")  # newer servers
        if not self._tools:
            return self._read(AssistantTurn(text, reasoning, truncated=truncated))
        calls = message.get("tool_calls")
        return AssistantTurn(
            text, reasoning, tuple(map(_call, calls.items(MOST_CALLS))) if calls else (), truncated=truncated
        )

    def _read(self, turn: AssistantTurn) -> AssistantTurn:
        """What a policy would have said by this text, which it would not have continued behind a stop string."""
        ends = [turn.text.find(stop) + len(stop) for stop in self._chat.stop_strings if stop in turn.text]
        text = turn.text[: min(ends)] if ends else turn.text
        ids = self._chat.turn_ids(AssistantTurn(text, turn.reasoning))
        return self._chat.parse(ids, stopped=bool(ends) or not turn.truncated)

    def _as_text(self, message: Message) -> Json:
        """What a tool answered comes as the user's word, in its frame: the API knows no other place for it."""
        if message.role == "tool":
            framed = self._chat.decode(self._chat.observation_ids([message], stopped=True))
            return {"role": "user", "content": framed.strip()}
        return {"role": message.role, "content": message.turn.text if message.turn else message.content}


def _function(tool: ToolSpec) -> Json:
    described = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": described}


def _with_calls(messages: Sequence[Message]) -> list[Json]:
    """The conversation as the API has it: each call has an id, and an answer of its own that names it."""
    asked: list[Json] = []
    waiting: list[str] = []
    for number, message in enumerate(messages):
        follows = number + 1 < len(messages) and messages[number + 1].role == "tool"
        if message.role == "tool" and waiting:
            # The last answer may stand for all calls that were too many.
            answered = waiting[:1] if follows else waiting
            asked += [{"role": "tool", "tool_call_id": name, "content": message.content} for name in answered]
            waiting = waiting[1:]
        elif message.role == "assistant" and message.turn:
            calls = [_written(call, f"call_{number}_{place}") for place, call in enumerate(message.turn.calls)]
            waiting = [call["id"] for call in calls]
            asked.append({"role": "assistant", "content": message.turn.text} | ({"tool_calls": calls} if calls else {}))
        else:
            asked.append({"role": message.role, "content": message.content})
    return asked


def _written(call: ToolCall | MalformedCall, name: str) -> Json:
    """A call of an earlier turn; of a malformed one what was written is in JSON again, as servers want it."""
    if isinstance(call, ToolCall):
        said, arguments = call.name, dict(call.arguments)
    else:
        said, arguments = "malformed_call", {"text": call.text}
    function = {"name": said, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": name, "type": "function", "function": function}


def _call(item: Part) -> ToolCall | MalformedCall:
    """A function call. Some servers give the arguments as an object instead of its JSON."""
    function = item["function"]
    name, arguments = function["name"].text(), function.get("arguments")
    given = "{}" if arguments is None else arguments.value
    try:
        value = untrusted_json.read(given) if isinstance(given, str) else given
        untrusted_json.check(value)
        if isinstance(value, dict):
            return ToolCall(name, value)
        fault = "the arguments are not an object"
    except ValueError as error:
        fault = str(error)
    return MalformedCall(well_formed(f"{name}({given})"), f"This tool call was not run: {fault}. Give a JSON object.")


def _text(message: Part, key: str) -> str:
    part = message.get(key)
    return "" if part is None else part.text()
