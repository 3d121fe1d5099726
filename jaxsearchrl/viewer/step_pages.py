"""The page of a step: the tries of each question side by side."""

from jaxsearchrl.errors import UserError
from jaxsearchrl.telemetry.alarms import Alarm, alarms
from jaxsearchrl.viewer.groups import groups_of, part_names, scale_of
from jaxsearchrl.viewer.render import Here, render
from jaxsearchrl.viewer.runs import Place, Run


def step_page(here: Here, run: Run, split: str, step: str) -> str:
    """All groups of a step, to be sorted and filtered; with ?text= only tries that have the text in any turn."""
    place = Place(split, int(step))
    file = run.file(split, place.step)
    contents = file.contents()
    text = here.query.get("text", "")
    summaries = contents.summaries
    if text:
        numbers = file.containing(text)
        summaries = tuple(summary for summary in summaries if summary.number in numbers)
    steps = sorted(other.step for other in run.files() if other.split == split)
    at = steps.index(place.step)
    return render(
        "step.html",
        here,
        run=run,
        place=place,
        groups=groups_of(summaries),
        total=len(contents.summaries),
        faults=contents.faults,
        outcomes=sorted({summary.outcome for summary in contents.summaries}),
        names=part_names(contents.summaries),
        scale=scale_of(contents.summaries),
        text=text,
        before=steps[at - 1] if at else None,
        after=steps[at + 1] if at + 1 < len(steps) else None,
        alarms=_alarms(run, place),
    )


def _alarms(run: Run, place: Place) -> list[Alarm]:
    try:
        rows = run.metrics()
    except UserError:
        return []  # the run's page says what is wrong with them
    until = [row for row in rows if row["kind"] == place.split and row["step"] <= place.step]
    return alarms(until) if place.split == "train" else []
