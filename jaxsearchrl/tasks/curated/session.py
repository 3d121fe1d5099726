"""The state of one episode, and what the tools that need no search do to it."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxsearchrl.tasks.curated.replies import Body, Reply, fixed
from jaxsearchrl.tasks.curated.reward import Counters

_LISTED = 20  # how many refused ids an answer repeats


@dataclass
class Session:
    """`encountered`: ids that a search has shown. `curated`: distinct ids in the order of adding. Changed in place."""

    encountered: set[str] = field(default_factory=set)
    curated: list[str] = field(default_factory=list)
    calls_made: set[str] = field(default_factory=set)
    counters: Counters = field(default_factory=Counters)

    def copy(self) -> "Session":
        """An independent copy, so that a step can be thrown away."""
        return Session(set(self.encountered), list(self.curated), set(self.calls_made), replace(self.counters))

    def note_call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Counts a call, its arguments found good, that has been made before."""
        call = json.dumps([name, arguments], sort_keys=True)
        self.counters.duplicate_calls += call in self.calls_made
        self.calls_made.add(call)

    def meant(self, written: str) -> str:
        """The id that the model means: with a tokenizer that composes characters (NFC) it cannot write all ids."""
        if written in self.encountered:
            return written
        composed = unicodedata.normalize("NFC", written)
        alike = [i for i in self.encountered if unicodedata.normalize("NFC", i) == composed]
        return alike[0] if len(alike) == 1 else written

    def search_state(self, shown: Sequence[str]) -> Body:
        """The numbers that a search's answer reports once it has shown `shown`."""
        return {
            "encountered_candidates": len(self.encountered.union(shown)),
            "curated_count": len(self.curated),
        }

    def curate(self, ids: Sequence[str], maximum: int) -> Reply:
        """Adds distinct `ids`, as far as a search has shown them and the set has room."""
        ids = self._all_meant(ids)
        refused = [i for i in ids if i not in self.encountered]
        already = [i for i in ids if i in self.curated]
        new = [i for i in ids if i in self.encountered and i not in self.curated]
        room = maximum - len(self.curated)
        added, over = new[:room], new[room:]
        self.curated += added
        self.counters.refused_ids += len(refused)
        body: Body = {"added": added, **self._set()}
        if already:
            body["already_curated"] = already
        if refused:
            body["invalid_document_ids"] = refused[:_LISTED]
            body["message"] = "Only ids that a search result has shown can be curated."
        if over:
            body["dropped_over_capacity"] = over[:_LISTED]
            body["maximum"] = maximum
        outcome = "curated" if added else "refused" if refused else "over_capacity" if over else "already_curated"
        return fixed(outcome, body, ok=not refused and not over)

    def drop(self, ids: Sequence[str]) -> Reply:
        """Takes `ids` out of the curated set."""
        ids = self._all_meant(ids)
        removed = [i for i in ids if i in self.curated]
        unknown = [i for i in ids if i not in self.curated]
        self.curated = [i for i in self.curated if i not in removed]
        body: Body = {"removed": removed, **self._set()}
        if unknown:
            body["not_curated"] = unknown[:_LISTED]
        return fixed("dropped" if removed else "not_curated", body, ok=not unknown)

    def finish(self) -> Reply:
        """Ends the episode."""
        self.counters.stop_reason = "finish"
        return fixed("finished", {"accepted": True, **self._set()})

    def _all_meant(self, written: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(map(self.meant, written)))

    def _set(self) -> Body:
        return {"curated_count": len(self.curated), "curated_ids": list(self.curated)}
