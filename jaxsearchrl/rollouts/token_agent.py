"""A policy as an agent: a chat format over a trajectory, with a sampler on the other side."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from jaxsearchrl.chat.format import ChatFormat
from jaxsearchrl.chat.stops import find_stop
from jaxsearchrl.messages import AssistantTurn, Message, ToolSpec
from jaxsearchrl.sampling.contract import SampleRequest, SampleResult
from jaxsearchrl.trajectory import Trajectory


class TokenAgent:
    """One episode's conversation in tokens. What it holds only grows.

    capacity: tokens that the trajectory may have; max_turn_tokens: tokens that a turn may have.
    """

    def __init__(self, uid: int, chat: ChatFormat, capacity: int, max_turn_tokens: int, temperature: float):
        self.uid, self.trajectory = uid, Trajectory()
        self._chat, self._capacity, self._max_turn_tokens = chat, capacity, max_turn_tokens
        self._temperature = temperature
        self._stopped = True
        self._tools: Sequence[ToolSpec] = ()
        self._find_stop: Callable[[Sequence[int]], int | None] | None = None
        if chat.stop_strings:
            self._find_stop = partial(find_stop, chat.decode, stop_strings=chat.stop_strings)

    def begin(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        """Takes the conversation's start; False when it leaves no room for a turn."""
        self._tools = tools
        self.trajectory.append_prompt(self._chat.prompt_ids(messages, tools))
        return self._room() > 0

    def request(self) -> SampleRequest:
        """Asks for the next turn."""
        return SampleRequest(
            uid=self.uid,
            tokens=self.trajectory.tokens,
            limit=min(self._max_turn_tokens, self._room()),
            temperature=self._temperature,
            find_stop=self._find_stop,
        )

    def receive(self, result: SampleResult) -> AssistantTurn:
        """Takes what was sampled and says what it means."""
        self.trajectory.append_sampled(result.ids, result.logprobs, result.routes)
        self._stopped = result.reason == "stop"
        turn = self._chat.parse(result.ids, stopped=result.reason != "length", tools=self._tools)
        return replace(turn, tokens_left=self._room())

    def observe(self, messages: Sequence[Message]) -> bool:
        """Takes the answer to the last turn; False, and nothing is taken, when it leaves no room for another turn."""
        ids = self._chat.observation_ids(messages, stopped=self._stopped)
        if self._room() <= len(ids):
            return False
        self.trajectory.append_observation(ids)
        return True

    def _room(self) -> int:
        return self._capacity - len(self.trajectory)
