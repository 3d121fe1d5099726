"""The episode of an agent without tokens, as a trajectory: what a policy would have sampled, in the same buffers."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jaxsearchrl.chat.format import ChatFormat
from jaxsearchrl.config import SamplingConfig
from jaxsearchrl.messages import AssistantTurn, Message
from jaxsearchrl.rollouts.loop import Rollout, answer_turn, retried, turn_record
from jaxsearchrl.rollouts.token_agent import TokenAgent
from jaxsearchrl.sampling.contract import SampleResult
from jaxsearchrl.tasks.environment import Agent, Environment


def scripted_rollout(
    agent: Agent,
    environment: Environment,
    chat: ChatFormat,
    config: SamplingConfig,
    retry_seconds: Sequence[float] = (),
) -> Rollout:
    """Plays to the end, or until the trajectory would outgrow `sampling.capacity` (stop reason "context").

    Of a turn with several calls a format that takes one at a time makes several turns. The turns' tokens have action
    mask 1, as sampled ones, and log-prob 0: nothing here sampled them. retry_seconds: pauses before further tries where
    the infrastructure fails agent or environment.
    """
    started = time.monotonic()
    tokens = TokenAgent(0, chat, config.capacity, config.max_turn_tokens, temperature=1.0)
    rollout = Rollout(tokens.trajectory)

    def failed() -> Rollout:
        rollout.stop_reason, rollout.seconds = "infrastructure", time.monotonic() - started
        return rollout

    messages = retried(environment.reset, rollout.errors, retry_seconds)
    if messages is None:
        return failed()
    room = tokens.begin(messages, environment.tools)
    done = False
    waiting: list[AssistantTurn] = []
    while room and not done:
        asked = time.monotonic()
        if not waiting:
            turn = retried(partial(agent.act, messages), rollout.errors, retry_seconds)
            if turn is None:
                return failed()
            waiting = _one_call_each(turn) if chat.one_call_a_turn else [turn]
        turn = waiting.pop(0)
        ids = retried(partial(chat.turn_ids, turn), rollout.errors, ())
        if ids is None:
            return failed()
        if len(tokens.trajectory) + len(ids) > config.capacity:
            room = False
            break
        seconds = time.monotonic() - asked
        read = tokens.receive(SampleResult(0, tuple(ids), (0.0,) * len(ids), "stop"))
        turn = replace(turn, tokens_left=read.tokens_left)
        rollout.truncated = turn.truncated
        answer = answer_turn(environment, turn, retry_seconds)
        rollout.errors += answer.errors
        if answer.failed:
            return failed()
        rollout.turns.append(turn_record(turn, tokens.trajectory.spans[-1], answer, seconds))
        messages = [*messages, Message("assistant", turn.text, turn=turn), *answer.messages]
        done = answer.done
        room = done or tokens.observe(answer.messages)
    rollout.score = retried(environment.score, rollout.errors, ())
    if rollout.score is None:
        return failed()
    rollout.stop_reason = environment.stop_reason if done else "context"
    rollout.seconds = time.monotonic() - started
    return rollout


def _one_call_each(turn: AssistantTurn) -> list[AssistantTurn]:
    """The turn's calls one by one, what it says with the first."""
    return [replace(turn, calls=turn.calls[:1]), *(AssistantTurn(calls=(call,)) for call in turn.calls[1:])]
