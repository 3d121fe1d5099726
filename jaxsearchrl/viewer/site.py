"""Addresses and what stands at them. The server and the export both ask here, so they cannot show different pages.

    index.html                           the run, or all runs of a folder
    compare.html                         the curves of several runs, one over the other
    rollouts/SPLIT/STEP.html             the groups of a step
    rollouts/SPLIT/STEP/NUMBER.html      a rollout; NUMBER is its line in the file of records
    rollouts/SPLIT/STEP/NUMBER-tokens.html
    rollouts/SPLIT/STEP/NUMBER.txt       the same rollout whole, as plain text
    tasks.html, tasks/KEY.html           the questions; one question through the run
    documents/KEY.html, documents/KEY.txt
    _viewer/viewer.css, _viewer/viewer.js

Runs below the folder have their own in front: `seed_42/index.html`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxsearchrl.errors import UserError
from jaxsearchrl.viewer import dataset_pages, rollout_pages, run_pages, step_pages
from jaxsearchrl.viewer.render import Here, fault_page
from jaxsearchrl.viewer.runs import Run, find_runs
from jaxsearchrl.viewer.visible import plain

STATIC = Path(__file__).parent / "static"
_STATIC_TYPES = {"viewer.css": "text/css", "viewer.js": "text/javascript", "viewer.svg": "image/svg+xml"}
_ROUTES = (
    (r"index\.html", run_pages.run_page),
    (r"rollouts/([^/]+)/(\d{1,15})\.html", step_pages.step_page),
    (r"rollouts/([^/]+)/(\d{1,15})/(\d{1,9})\.html", rollout_pages.rollout_page),
    (r"rollouts/([^/]+)/(\d{1,15})/(\d{1,9})-tokens\.html", rollout_pages.tokens_page),
    (r"rollouts/([^/]+)/(\d{1,15})/(\d{1,9})\.txt", rollout_pages.text_page),
    (r"tasks\.html", dataset_pages.tasks_page),
    (r"tasks/([0-9a-f]{16})\.html", dataset_pages.task_page),
    (r"documents/([0-9a-f]{16})\.html", dataset_pages.document_page),
    (r"documents/([0-9a-f]{16})\.txt", dataset_pages.document_text),
)


@dataclass(frozen=True)
class Page:
    """What a browser gets."""

    body: bytes
    kind: str = "text/html"
    status: int = 200


class Site:
    """All pages of a folder. exported: they become files, so nothing on them may need a server.

    Raises UserError for a folder without runs.
    """

    def __init__(self, workdir: str | Path, *, exported: bool = False) -> None:
        self._workdir, self._exported = workdir, exported
        self.runs = find_runs(workdir)

    @property
    def start(self) -> Run | None:
        """The run that the folder itself is, if it is one."""
        return next((run for run in self.runs if not run.base), None)

    def look_again(self) -> None:
        """Finds runs that have begun since."""
        known = {run.base: run for run in self.runs}
        self.runs = [known.get(run.base, run) for run in find_runs(self._workdir)]

    def page(self, path: str, query: Mapping[str, str]) -> Page:
        """The page of an address (decoded, without a slash in front). A fault is a page too."""
        if (asset := path.removeprefix("_viewer/")) != path and asset in _STATIC_TYPES:
            return Page((STATIC / asset).read_bytes(), _STATIC_TYPES[asset])
        here = Here(path, self.runs, query, self._exported, "" if self._exported else self.signature(path) or "")
        try:
            text = self._text(here)
        except (UserError, OSError) as error:
            fault, status = str(error), 500
        else:
            fault, status = ("There is no such page.", 404) if text is None else ("", 200)
        kind = "text/plain" if path.endswith(".txt") else "text/html"
        if fault:
            text = plain(f"{fault}\n") if kind == "text/plain" else fault_page(here, fault)
        return Page((text or "").encode("utf-8", "replace"), kind, status)

    def signature(self, path: str) -> str | None:
        """Changes whenever the page may; None for a page that never does while it stands."""
        run = self._run_of(path)
        if run is None or path == "compare.html":
            return "-".join(run.signature() for run in self.runs)
        return run.signature() if path.startswith((f"{run.base}index", f"{run.base}task")) else None

    def paths(self) -> Iterator[str]:
        """Every address, with all records read."""
        yield from (f"_viewer/{name}" for name in _STATIC_TYPES)
        yield "index.html"
        if len(self.runs) > 1:
            yield "compare.html"
        for run in self.runs:
            if run.base:
                yield f"{run.base}index.html"
            contents = {place: file.contents() for place, file in run.files().items()}
            for place, known in contents.items():
                yield f"{run.base}rollouts/{place.path}.html"
                for summary in known.summaries:
                    address = f"{run.base}rollouts/{place.path}/{summary.number}"
                    yield from (f"{address}.html", f"{address}-tokens.html", f"{address}.txt")
            yield f"{run.base}tasks.html"
            for task in dataset_pages.tasks_of(run):
                yield f"{run.base}tasks/{task}.html"
            for key, use in dataset_pages.documents_of(run).items():
                yield f"{run.base}documents/{key}.html"
                if run.documents.read(use.id):
                    yield f"{run.base}documents/{key}.txt"

    def _run_of(self, path: str) -> Run | None:
        """The run with the longest address in front of a path."""
        fitting = [run for run in self.runs if path.startswith(run.base)]
        return max(fitting, key=lambda run: len(run.base), default=None)

    def _text(self, here: Here) -> str | None:
        if here.path == "compare.html" or (here.path == "index.html" and self.start is None):
            return run_pages.overview(here)
        run = self._run_of(here.path)
        if run is None:
            return None
        rest = here.path.removeprefix(run.base)
        for pattern, make in _ROUTES:
            if match := re.fullmatch(pattern, rest):
                return make(here, run, *match.groups())
        return None
