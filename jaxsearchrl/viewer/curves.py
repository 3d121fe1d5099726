"""Curves of metrics as inline SVG, each in three degrees of smoothing of which the page shows one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from jaxsearchrl.telemetry.alarms import alarm_history
from jaxsearchrl.telemetry.plots import TRAINING, estimated

SMOOTHING = (0.0, 0.6, 0.9)
"""Weights of the past; a curve is the running mean with that weight, corrected for its start."""
COLORS = 8
_W, _H, _LEFT, _RIGHT, _TOP, _BOTTOM = 460, 210, 52, 12, 10, 26
_MOST_DOTS = 160
_FARTHEST = 1e300

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One line. color: from 0; run: its number on a page of several.

    links: an address for each step, where there is one; band: (step, low, high); alarms: (step, words); measured: not
    to be smoothed, as evaluations are few and each of its own.
    """

    name: str
    points: Points
    color: int
    run: int = 0
    links: Mapping[float, str] | None = None
    band: Sequence[tuple[float, float, float]] = ()
    alarms: Sequence[tuple[float, str]] = ()
    measured: bool = False


@dataclass(frozen=True)
class Chart:
    """A title and its lines."""

    title: str
    series: Sequence[Series]
    share: bool = False
    from_zero: bool = False

    def svg(self) -> Markup:
        """The drawing."""
        return _draw(self)


def smoothed(points: Points, weight: float) -> list[tuple[float, float]]:
    """The running mean: each value is (1 - w) Σ w^i x_(n-i), divided by 1 - w^n so that its start is no zero."""
    mean, scale, result = 0.0, 0.0, []
    for x, y in points:
        mean, scale = weight * mean + (1 - weight) * y, weight * scale + (1 - weight)
        result.append((x, mean / scale))
    return result


def training(rows: Sequence[Mapping[str, Any]], links: Mapping[float, str]) -> list[Chart]:
    """The panels of a run's training metrics, with the alarms that each metric raised."""
    train = [row for row in rows if row["kind"] == "train"]
    raised = alarm_history(train)
    charts = []
    for panel in TRAINING:
        series = [
            Series(
                _label(name),
                points,
                color % COLORS,
                links=links,
                alarms=[(step, str(alarm)) for step, alarm in raised if alarm.seen.startswith(f"{name} ")],
            )
            for color, name in enumerate(panel.present(train))
            if (points := _points(train, name))
        ]
        if series:
            charts.append(Chart(panel.title, series, panel.share, panel.from_zero or panel.stacked))
    return charts


def evaluation(rows: Sequence[Mapping[str, Any]], links: Mapping[str, Mapping[float, str]]) -> list[Chart]:
    """Each measure of the evaluations with its interval, a line for each kind of evaluation."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"].startswith("eval"):
            kinds.setdefault(row["kind"], []).append(row)
    charts = []
    for name in estimated(kinds):
        series = []
        for color, (kind, measured) in enumerate(kinds.items()):
            highs = dict(_points(measured, f"{name}_high"))
            band = [(x, low, highs[x]) for x, low in _points(measured, f"{name}_low") if x in highs]
            points = _points(measured, name)
            if points:
                series.append(Series(kind, points, color % COLORS, links=links.get(kind, {}), band=band, measured=True))
        if series:
            charts.append(Chart(f"Evaluation: {_label(name)}", series))
    return charts


def overlaid(runs: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str]) -> list[Chart]:
    """For each metric of training and of evaluations one chart with a line for each run."""
    metrics = [("train", name) for panel in TRAINING for name in panel.names if not name.endswith("*")]
    metrics = [("eval", name) for name in ("reward", "score/f_beta", "score/exact")] + metrics
    charts = []
    for kind, name in dict.fromkeys(metrics):
        series = [
            Series(run, points, number % COLORS, run=number, measured=kind == "eval")
            for number, (run, rows) in enumerate(zip(names, runs, strict=True))
            if (points := _points([row for row in rows if row["kind"] == kind], name))
        ]
        if series:
            charts.append(Chart(f"{'Evaluation' if kind == 'eval' else 'Training'}: {_label(name)}", series))
    return charts


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> Points:
    return [(_drawable(row["step"]), _drawable(row[name])) for row in rows if isinstance(row.get(name), int | float)]


def _drawable(value: float) -> float:
    """Within what the span between two values is a float for."""
    return min(max(float(value), -_FARTHEST), _FARTHEST)


def _label(name: str) -> str:
    return name.rpartition("/")[2].replace("_", " ")


def _draw(chart: Chart) -> Markup:
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    ys += [y for series in chart.series for _, low, high in series.band for y in (low, high)]
    if chart.share:
        ys += [0.0, 1.0]
    elif chart.from_zero:
        ys.append(0.0)
    x_ticks = _ticks(min(xs), max(xs), 6, whole=True)
    y_ticks = _ticks(min(ys), max(ys), 4)
    left, right = min(xs), max(xs)
    low, high = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - left) / ((right - left) or 1) * (_W - _LEFT - _RIGHT),
            _H - _BOTTOM - (y - low) / ((high - low) or 1) * (_H - _BOTTOM - _TOP),
        )

    shapes = [_grid(at, left, right, low, x_ticks, y_ticks)]
    shapes += [_series(at, series) for series in chart.series]
    shapes += [_alarm(at, low, step, words) for series in chart.series for step, words in series.alarms]
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="group" aria-label="{}">{}</svg>').format(
        _W, _H, f"{chart.title}: {'; '.join(map(_in_words, chart.series))}", Markup("").join(shapes)
    )


def _grid(at: Any, left: float, right: float, low: float, x_ticks: list[float], y_ticks: list[float]) -> Markup:
    lines = [
        Markup('<path class="grid" d="M{} {:.1f}H{}"/><text class="y" x="{}" y="{:.1f}">{}</text>').format(
            _LEFT, at(left, y)[1], _W - _RIGHT, _LEFT - 7, at(left, y)[1] + 4, f"{y:.6g}"
        )
        for y in y_ticks
    ]
    lines += [
        Markup('<text class="x" x="{:.1f}" y="{}">{}</text>').format(at(x, low)[0], _H - 8, f"{x:.6g}")
        for x in x_ticks
        if left <= x <= right
    ]
    return Markup("").join(lines)


def _series(at: Any, series: Series) -> Markup:
    color = f"c{series.color}"
    shapes = []
    if series.band:
        edge = [at(x, high) for x, _, high in series.band] + [at(x, low) for x, low, _ in reversed(series.band)]
        shapes.append(Markup('<path class="band" d="{}Z"/>').format(_path(edge)))
    if series.measured:
        shapes.append(_line(at, series.points, "measured"))
    else:
        for level, weight in enumerate(SMOOTHING):
            shapes.append(_line(at, smoothed(series.points, weight), f"smooth-{level}"))
    if len(series.points) <= _MOST_DOTS:
        shapes += [
            _dot(at(x, y), f"{series.name}, step {x:g}: {y:.4g}", (series.links or {}).get(x)) for x, y in series.points
        ]
    kind = f"{color} measured" if series.measured else color
    return Markup('<g class="{}" data-run="{}">{}</g>').format(kind, series.run, Markup("").join(shapes))


def _line(at: Any, points: Points, kind: str) -> Markup:
    return Markup('<path class="line {}" d="{}"/>').format(kind, _path([at(x, y) for x, y in points]))


def _dot(place: tuple[float, float], words: str, link: str | None) -> Markup:
    dot = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>').format(*place, words)
    if link is None:
        return dot
    return Markup('<a href="{}" tabindex="-1" aria-label="{}">{}</a>').format(link, words, dot)


def _alarm(at: Any, low: float, step: float, words: str) -> Markup:
    x, y = at(step, low)
    return Markup('<path class="alarm" d="M{:.1f} {:.1f}l5 9h-10z"><title>{}</title></path>').format(
        x, y - 1, f"alarm at step {step:g}: {words}"
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """About `count` round numbers that enclose [low, high]."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(max(span / count, 1 / _FARTHEST)))
    size = min((s * power for s in (1, 2, 5, 10)), key=lambda s: abs(span / s - count))
    if whole:
        size = max(1.0, round(size))
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [n * size for n in range(first, last + 1)]


def _in_words(series: Series) -> str:
    (first, start), (last, end) = series.points[0], series.points[-1]
    return f"{series.name} {start:.3g} at step {first:g}, {end:.3g} at step {last:g}"
