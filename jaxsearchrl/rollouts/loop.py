"""Plays many episodes at once: the sampler decodes while tools run in threads.

One thread drives. It admits episodes to free slots in order, lets the sampler work, and hands each finished turn to a
tool thread; what comes back becomes the episode's next request. With `deterministic`, the tools of a round are awaited
and taken in the order of uids, so that a run repeats whatever the timing; otherwise whatever is finished goes on, and
the device waits only when every episode does.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jaxsearchrl.chat.format import ChatFormat
from jaxsearchrl.config import SamplingConfig
from jaxsearchrl.errors import InfrastructureError
from jaxsearchrl.messages import AssistantTurn, Message
from jaxsearchrl.records import CallRecord, EncounteredRecord, TurnRecord
from jaxsearchrl.rollouts.token_agent import TokenAgent
from jaxsearchrl.sampling.contract import Sampler
from jaxsearchrl.tasks.environment import Environment, Score
from jaxsearchrl.trajectory import Span, Trajectory

RETRY_SECONDS = (1.0, 4.0, 16.0)
"""Pauses before each further try of a step that the infrastructure failed."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Rollout:
    """An episode that is over. `score` is None when the infrastructure failed for good."""

    trajectory: Trajectory
    turns: list[TurnRecord] = field(default_factory=list)
    score: Score | None = None
    stop_reason: str = ""
    truncated: bool = False
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    """What a tool thread brings back. `failed`: the infrastructure failed for good, or the environment raised."""

    messages: list[Message]
    done: bool
    details: dict[str, Any]
    seconds: float
    errors: list[str]
    failed: bool = False


@dataclass
class _Episode:
    environment: Environment
    agent: TokenAgent
    rollout: Rollout
    started: float
    asked: float = 0.0
    turn: AssistantTurn | None = None
    seconds_model: float = 0.0


def run_episodes(
    environments: Sequence[Environment],
    sampler: Sampler,
    chat: ChatFormat,
    config: SamplingConfig,
    *,
    temperature: float,
    uids: Sequence[int] = (),
    ended: Callable[[int, Rollout], None] = lambda uid, rollout: None,
    retry_seconds: Sequence[float] = RETRY_SECONDS,
) -> list[Rollout]:
    """Plays every environment to its end; rollouts in the same order.

    uids: of the episodes, which their random streams depend on; 0, 1, … by default. ended: called per finished episode.
    """
    uids = uids or range(len(environments))
    environment_of = dict(zip(uids, environments, strict=True))
    waiting = deque(uids)
    live: dict[int, _Episode] = {}
    rollouts: dict[int, Rollout] = {}
    running: dict[Future[Answer], int] = {}

    def end(uid: int, stop_reason: str) -> None:
        episode = live.pop(uid)
        episode.rollout.stop_reason = stop_reason
        if stop_reason != "infrastructure":
            try:
                episode.rollout.score = episode.environment.score()
            except Exception as error:
                episode.rollout.stop_reason = "infrastructure"
                episode.rollout.errors.append(_raised(error))
        episode.rollout.seconds = time.monotonic() - episode.started
        rollouts[uid] = episode.rollout
        ended(uid, episode.rollout)

    def ask(uid: int) -> None:
        episode = live[uid]
        episode.asked = time.monotonic()
        sampler.submit(episode.agent.request())

    def admit(uid: int) -> None:
        agent = TokenAgent(uid, chat, config.capacity, config.max_turn_tokens, temperature)
        environment = environment_of[uid]
        live[uid] = _Episode(environment, agent, Rollout(agent.trajectory), time.monotonic())
        try:
            messages, tools = environment.reset(), environment.tools
        except Exception as error:
            live[uid].rollout.errors.append(_raised(error))
            return end(uid, "infrastructure")
        if agent.begin(messages, tools):
            ask(uid)
        else:
            end(uid, "context")

    def take(uid: int, answer: Answer) -> None:
        episode = live[uid]
        episode.rollout.errors += answer.errors
        if answer.failed:
            reason = "infrastructure"
        else:
            assert episode.turn is not None
            span = episode.agent.trajectory.spans[-1]
            episode.rollout.turns.append(turn_record(episode.turn, span, answer, episode.seconds_model))
            if answer.done:
                reason = episode.environment.stop_reason
            elif episode.agent.observe(answer.messages):
                return ask(uid)
            else:
                reason = "context"
        sampler.release(uid)
        end(uid, reason)

    with ThreadPoolExecutor(config.tool_threads, thread_name_prefix="tools") as pool:
        while waiting or live:
            while waiting and sampler.free_slots:
                admit(waiting.popleft())
            for result in sampler.poll():
                episode = live[result.uid]
                episode.seconds_model = time.monotonic() - episode.asked
                episode.turn = episode.agent.receive(result)
                episode.rollout.truncated = result.reason == "length"
                running[pool.submit(answer_turn, episode.environment, episode.turn, retry_seconds)] = result.uid
            finished = _finished(running, deterministic=config.deterministic, idle=len(running) == len(live))
            for uid, future in sorted((running.pop(future), future) for future in finished):
                take(uid, future.result())
    return [rollouts[uid] for uid in uids]


def answer_turn(environment: Environment, turn: AssistantTurn, retry_seconds: Sequence[float]) -> Answer:
    """Runs in a tool thread. Never raises: a failure is retried, then reported; any other exception at once."""
    started, errors = time.monotonic(), []
    answered = retried(lambda: (*environment.step(turn), dict(environment.last_step())), errors, retry_seconds)
    messages, done, details = answered or ([], True, {})
    return Answer(messages, done, details, time.monotonic() - started, errors, failed=answered is None)


def retried(act: Callable[[], T], errors: list[str], retry_seconds: Sequence[float]) -> T | None:
    """What `act` returns, after a pause and another try for each time that the infrastructure fails.

    None, and never an exception, where it fails for good or anything else is raised. `errors` gets every failure.
    """
    for pause in (*retry_seconds, None):
        try:
            return act()
        except InfrastructureError as error:
            errors.append(f"{type(error).__name__}: {error}")
            if pause is not None:
                time.sleep(pause)
        except Exception as error:
            errors.append(_raised(error))
            break
    return None


def _raised(error: Exception) -> str:
    """Logs what an environment raised; one bad episode never ends a run, enough do (train.max_infrastructure_share)."""
    _log.error("an environment raised; its episode is left out", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _finished(running: dict[Future[Answer], int], *, deterministic: bool, idle: bool) -> list[Future[Answer]]:
    """Tool calls to take now: all of the round, or those that are done; at least one when nothing else is to do."""
    if not running:
        return []
    if deterministic:
        wait(running)
    elif idle:
        wait(running, return_when=FIRST_COMPLETED)
    return [future for future in running if future.done()]


def turn_record(turn: AssistantTurn, span: Span, answer: Answer, seconds_model: float) -> TurnRecord:
    """What the records keep of a turn, sampled at `span`, and of its answer."""
    details = answer.details
    return TurnRecord(
        text=turn.text,
        reasoning=turn.reasoning,
        calls=tuple(CallRecord(**call) for call in details.get("calls", ())),
        observation="\n".join(message.content for message in answer.messages),
        encountered=tuple(EncounteredRecord(**hit) for hit in details.get("encountered", ())),
        curated=tuple(details.get("curated", ())),
        seconds_model=seconds_model,
        seconds_tools=answer.seconds,
        tokens=(span.start, span.stop),
        truncated=turn.truncated,
    )
