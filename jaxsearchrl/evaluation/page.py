"""A report as sections of text, tables, charts and listings, and these as Markdown or as one HTML file.

The HTML asks for nothing over the network, and escapes whatever it is given: models and documents write into it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

WIDTH, HEIGHT, MARGIN = 420, 220, 42
COLORS = ("#2a6f97", "#e07a5f", "#5a9367", "#9a6fb0", "#d9a441", "#7f7f7f")


@dataclass(frozen=True)
class Table:
    """Rows of texts under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Listing:
    """Text to be shown as it stands."""

    title: str
    text: str


@dataclass(frozen=True)
class Line:
    """A line of a chart: (step, value, low, high) with an interval, or without (None)."""

    label: str
    points: Sequence[tuple[float, float, float | None, float | None]]


@dataclass(frozen=True)
class Chart:
    """Lines against the step, at least one with a point."""

    title: str
    lines: Sequence[Line]

    def drawn(self) -> dict[str, object]:
        """Coordinates for the template: ticks, and of each line its colour, label, dots, path and bars."""
        points = [point for line in self.lines for point in line.points]
        heights = [value for _, *values in points for value in values if value is not None]
        x, first, last = _scale([step for step, *_ in points], MARGIN, WIDTH - 10)
        y, low, high = _scale(heights, HEIGHT - 24, 12)
        lines = [
            {
                "color": COLORS[number % len(COLORS)],
                "label": line.label,
                "path": " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value, *_ in line.points),
                "dots": [(f"{x(step):.1f}", f"{y(value):.1f}") for step, value, *_ in line.points],
                "bars": [
                    (f"{x(step):.1f}", f"{y(under):.1f}", f"{y(over):.1f}")
                    for step, _, under, over in line.points
                    if under is not None and over is not None
                ],
            }
            for number, line in enumerate(self.lines)
        ]
        x_ticks = [(f"{x(tick):.1f}", f"{tick:g}") for tick in sorted({first, last})]
        y_ticks = [(f"{y(tick):.1f}", f"{tick:.3g}") for tick in (low, (low + high) / 2, high)]
        return {"lines": lines, "x_ticks": x_ticks, "y_ticks": y_ticks}


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; a plain text is a paragraph."""

    title: str
    blocks: Sequence[str | Table | Listing | Chart]


def as_html(title: str, sections: Sequence[Section]) -> str:
    """One self-contained page."""
    shown = [
        (section.title, [(type(block).__name__, block) for block in section.blocks])
        for section in sections
        if section.blocks
    ]
    return _template().render(title=title, sections=shown, width=WIDTH, height=HEIGHT, margin=MARGIN)


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """The same as text; charts become tables."""
    lines = [f"# {_inline(title)}", ""]
    for section in sections:
        if section.blocks:
            lines += [f"## {_inline(section.title)}", ""]
        for block in section.blocks:
            match block:
                case Table():
                    lines += [*table_lines(block), ""]
                case Chart():
                    lines += [f"{_inline(block.title)}:", "", *table_lines(_numbers(block)), ""]
                case Listing():
                    fence = "`" * (max(2, _longest_ticks(block.text)) + 1)
                    lines += [f"{_inline(block.title)}:", "", fence + "text", block.text, fence, ""]
                case _:
                    lines += [_inline(block), ""]
    return "\n".join(lines)


@cache
def _template() -> Template:
    source = resources.files("jaxsearchrl.evaluation").joinpath("report.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        source
    )


def _scale(values: Sequence[float], start: float, stop: float) -> tuple[Callable[[float], float], float, float]:
    """(function to pixels, least, greatest); equal values stand in the middle."""
    low, high = min(values), max(values)
    room = high - low
    return (lambda v: start + (stop - start) * ((v - low) / room if room else 0.5)), low, high


def _numbers(chart: Chart) -> Table:
    steps = sorted({step for line in chart.lines for step, *_ in line.points})
    at = [{step: (value, low, high) for step, value, low, high in line.points} for line in chart.lines]
    rows = [[f"{step:g}", *(_with_interval(*line[step]) if step in line else "" for line in at)] for step in steps]
    return Table(["step", *(line.label for line in chart.lines)], rows)


def _with_interval(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.3g}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def table_lines(table: Table) -> list[str]:
    """A table in Markdown, line by line."""

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_inline(cell).replace("|", "\\|") for cell in cells) + " |"

    return [row(table.header), "|" + "---|" * len(table.header), *map(row, table.rows)]


def _inline(text: str) -> str:
    """One line that Markdown's readers show as it is: no tags, no line breaks."""
    return " ".join(text.split()).replace("<", "&lt;")


def _longest_ticks(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def finite(value: object) -> bool:
    """Whether a value of metrics.jsonl can be drawn."""
    return isinstance(value, int | float) and math.isfinite(value)
