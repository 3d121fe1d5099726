"""The questions of a run, what became of each through it, and the documents that its tries met."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxsearchrl.viewer.facts import Fact
from jaxsearchrl.viewer.groups import key_of, part_names, pass_rate, scale_of
from jaxsearchrl.viewer.record_file import Contents
from jaxsearchrl.viewer.render import Here, render
from jaxsearchrl.viewer.runs import Place, Run
from jaxsearchrl.viewer.summary import Summary
from jaxsearchrl.viewer.visible import finder, lit, plain

_MOST = 200  # tries that the page of a document lists


@dataclass
class Task:
    """A question and its tries, by split and step."""

    id: str
    query: str
    facts: tuple[Fact, ...]
    tries: dict[Place, list[Summary]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return key_of(self.id, self.query)

    @property
    def rewards(self) -> list[float]:
        return [s.reward for tries in self.tries.values() for s in tries if s.reward is not None]

    @property
    def mean(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def passed(self) -> float:
        """The share of tries that found everything."""
        return pass_rate([s for tries in self.tries.values() for s in tries])


@dataclass
class Use:
    """A document, the facts that it supports, and the tries that were shown it: how many, and the first of them."""

    id: str
    wanted: list[tuple[Task, Fact]] = field(default_factory=list)
    met: list[tuple[Place, Summary]] = field(default_factory=list)
    times: int = 0


def tasks_of(run: Run) -> dict[str, Task]:
    """The tasks by key, as far as records have been read; training's first."""
    return run.derived(_tasks)


def documents_of(run: Run) -> dict[str, Use]:
    """The documents, by key, that a task or a try names, as far as records have been read."""
    return run.derived(_documents)


def _tasks(known: Mapping[Place, Contents]) -> dict[str, Task]:
    tasks: dict[tuple[str, str], Task] = {}
    for place, contents in sorted(known.items(), key=lambda item: (item[0].split != "train", item[0].step)):
        for summary in contents.summaries:
            asked = summary.task_id, summary.query
            task = tasks.setdefault(asked, Task(*asked, summary.facts))
            task.tries.setdefault(place, []).append(summary)
    return {task.key: task for task in tasks.values()}


def _documents(known: Mapping[Place, Contents]) -> dict[str, Use]:
    uses: dict[str, Use] = {}
    for task in _tasks(known).values():
        for fact in task.facts:
            for name in fact.documents:
                uses.setdefault(name, Use(name)).wanted.append((task, fact))
        for place, tries in task.tries.items():
            for summary in tries:
                for name in summary.documents:
                    if (use := uses.get(name)) is None:
                        use = uses[name] = Use(name)
                    use.times += 1
                    if use.times <= _MOST:
                        use.met.append((place, summary))
    return {key_of(name): use for name, use in uses.items()}


def tasks_page(here: Here, run: Run) -> str:
    """All questions."""
    tasks = list(tasks_of(run).values())
    splits = list(dict.fromkeys(place.split for task in tasks for place in task.tries))
    return render("tasks.html", here, run=run, tasks=tasks, splits=splits, pass_rate=pass_rate, **_progress(run))


def task_page(here: Here, run: Run, key: str) -> str | None:
    """One question: its facts with their documents, and its tries through the run."""
    task = tasks_of(run).get(key)
    if task is None:
        return None
    summaries = [summary for tries in task.tries.values() for summary in tries]
    return render(
        "task.html",
        here,
        run=run,
        task=task,
        names=part_names(summaries),
        scale=scale_of(summaries),
        pass_rate=pass_rate,
        key_of=key_of,
        documents={d: run.documents.read(d) for fact in task.facts for d in fact.documents},
        **_progress(run),
    )


def document_page(here: Here, run: Run, key: str) -> str | None:
    """A document as the corpus has it, and the tasks that want it."""
    use = documents_of(run).get(key)
    if use is None:
        return None
    document = run.documents.read(use.id)
    words = finder(answer for task, _ in use.wanted for fact in task.facts for answer in fact.answers)
    return render(
        "document.html",
        here,
        run=run,
        use=use,
        key=key,
        document=document,
        text=lit(document.text, words) if document else "",
    )


def document_text(here: Here, run: Run, key: str) -> str | None:
    """The whole document as plain text."""
    use = documents_of(run).get(key)
    document = run.documents.read(use.id) if use else None
    return plain(f"{document.title}\n\n{document.text}\n") if document else None


def _progress(run: Run) -> dict[str, int]:
    files = run.files().values()
    return {"read": sum(file.known() is not None for file in files), "files": len(files)}
