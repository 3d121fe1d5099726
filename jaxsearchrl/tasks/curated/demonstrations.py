"""Recorded turns of somebody else's agent, played again here: what a warm start can imitate.

A file is JSONL, one demonstration a line: the keys of a task, and
`"turns": [{"reasoning"?, "calls": [{"name", "arguments"}]}]`. Only actions are recorded; what answers them is this
corpus's search, so what the model learns is what it will see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxsearchrl.messages import AssistantTurn, Message, ToolCall
from jaxsearchrl.tasks.curated.data import Task, task_of
from jaxsearchrl.tasks.curated.data import to_row as task_row
from jaxsearchrl.tasks.curated.replies import shown_ids
from jaxsearchrl.tasks.curated.tools import SEARCHES
from jaxsearchrl.tasks.task_files import check_keys, get, get_text, read_tasks

FINISH = AssistantTurn(calls=(ToolCall("finish", {}),))
_ID_ARGUMENTS = {"read_document": "document_id", "curate": "document_ids", "drop_curated": "document_ids"}


@dataclass(frozen=True)
class Demonstration:
    """A task and the turns of whoever played it."""

    task: Task
    turns: tuple[AssistantTurn, ...]

    @property
    def id(self) -> str:
        """The task's."""
        return self.task.id


def load_demonstrations(path: str | Path) -> list[Demonstration]:
    """The demonstrations of a JSONL file, in file order.

    Raises UserError naming file, line and key for anything unreadable, missing, unknown, of the wrong type or repeated.
    """
    return read_tasks(path, _demonstration, "demonstration")


def to_row(demonstration: Demonstration) -> dict[str, Any]:
    """The line of a demonstration, as `load_demonstrations` reads it."""
    turns = [
        {
            **({"reasoning": turn.reasoning} if turn.reasoning else {}),
            "calls": [asdict(call) for call in turn.calls],
        }
        for turn in demonstration.turns
    ]
    return {**task_row(demonstration.task), "turns": turns}


class DemonstrationAgent:
    """Plays a demonstration's turns, without ids that no search has shown here: they would be refused, and teach that.

    Turns of which nothing is left are passed over; when all are played, it finishes. One object plays one episode.
    """

    def __init__(self, demonstration: Demonstration) -> None:
        self._left = list(demonstration.turns)

    def act(self, messages: Sequence[Message]) -> AssistantTurn:
        """The next turn."""
        found = [message for message in messages if message.role == "tool" and message.name in SEARCHES]
        seen = {i for message in found for i in shown_ids(message.content)}
        while self._left:
            turn = self._left.pop(0)
            calls = tuple(call for call in (_seen_only(call, seen) for call in turn.calls) if call)
            if calls:
                return AssistantTurn(reasoning=turn.reasoning, calls=calls)
        return FINISH


def _seen_only(call: Any, seen: set[str]) -> ToolCall | None:
    argument = _ID_ARGUMENTS.get(call.name)
    if argument is None:
        return call
    if call.name == "read_document":
        return call if call.arguments.get(argument) in seen else None
    ids = [i for i in call.arguments.get(argument, ()) if i in seen]
    return ToolCall(call.name, {argument: ids}) if ids else None


def _demonstration(row: Any, where: str) -> Demonstration:
    check_keys(row, {"id", "query", "facts", "answer", "turns"}, where)
    turns = get(row, "turns", list, where)
    task = task_of({key: value for key, value in row.items() if key != "turns"}, where)
    return Demonstration(task, tuple(_turn(turn, f"{where}: turns[{i}]") for i, turn in enumerate(turns)))


def _turn(row: Any, where: str) -> AssistantTurn:
    check_keys(row, {"reasoning", "calls"}, where)
    calls = tuple(_call(call, f"{where}: calls[{i}]") for i, call in enumerate(get(row, "calls", list, where)))
    return AssistantTurn(reasoning=get(row, "reasoning", str, where) if "reasoning" in row else "", calls=calls)


def _call(row: Mapping[str, Any], where: str) -> ToolCall:
    check_keys(row, {"name", "arguments"}, where)
    return ToolCall(get_text(row, "name", where), get(row, "arguments", dict, where))
