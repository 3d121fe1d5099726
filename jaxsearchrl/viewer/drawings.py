"""Small drawings as inline SVG. Colours are classes, sizes are attributes: the pages allow no inline style."""

from collections.abc import Sequence

from markupsafe import Markup

from jaxsearchrl.records import RolloutRecord
from jaxsearchrl.viewer.summary import KINDS, Strip, Summary

_WIDTH = 1000  # units from left to right; the style sheet stretches them


def strip(summary: Summary, longest: int) -> Markup:
    """The turns from left to right, as long as their tokens; what answered them is the thin part.

    longest: tokens of the longest episode that is drawn beside it.
    """
    scale = _WIDTH / max(1, longest)
    place = summary.prompt_tokens * scale
    shapes = [_box(0, 9, place, 4, "prompt", f"prompt, {summary.prompt_tokens} tokens")]
    for number, turn in enumerate(summary.strips, start=1):
        width = turn.sampled * scale / len(turn.kinds)
        words = f"turn {number}: {', '.join(KINDS[kind] for kind in turn.kinds)}; {turn.sampled} tokens"
        for kind in turn.kinds:
            shapes.append(_box(place, 2, width, 18, kind, words))
            place += width
        shapes.append(_box(place, 9, turn.observed * scale, 4, "observed", f"answered with {turn.observed} tokens"))
        place += turn.observed * scale
    return _svg(shapes, 22, "strip", f"{len(summary.strips)} turns: {_in_words(summary.strips)}")


def context(record: RolloutRecord, capacity: int | None) -> Markup:
    """How the episode filled the context, span by span."""
    total = max(len(record.tokens), capacity or 0, 1)
    kinds = {"prompt": "prompt", "sampled": "sampled", "observation": "observed"}
    shapes = [
        _box(
            span.start * _WIDTH / total,
            0,
            (span.stop - span.start) * _WIDTH / total,
            16,
            kinds[span.kind],
            f"{span.kind}, {span.stop - span.start} tokens from {span.start}",
        )
        for span in record.spans
    ]
    share = f", {len(record.tokens) / capacity:.0%} of {capacity}" if capacity else ""
    return _svg(shapes, 16, "context", f"{len(record.tokens)} tokens{share}")


def timing(record: RolloutRecord) -> Markup:
    """Seconds of the model and of the tools, turn after turn."""
    total = max(sum(turn.seconds_model + turn.seconds_tools for turn in record.turns), 1e-9)
    place, shapes = 0.0, []
    for number, turn in enumerate(record.turns, start=1):
        for kind, seconds in (("sampled", turn.seconds_model), ("tools", turn.seconds_tools)):
            width = seconds / total * _WIDTH
            who = "model" if kind == "sampled" else "tools"
            shapes.append(
                _box(place, 0, width, 16, f"{kind} turn-{number % 2}", f"turn {number}: {who} {seconds:.3g} s")
            )
            place += width
    model = sum(turn.seconds_model for turn in record.turns)
    tools = sum(turn.seconds_tools for turn in record.turns)
    return _svg(shapes, 16, "timing", f"model {model:.3g} s, tools {tools:.3g} s")


def meter(value: float | None, low: float, high: float, kind: str) -> Markup:
    """A number as a bar from zero, on the scale [low, high] that its neighbours share."""
    if value is None or not high > low:
        return Markup("")
    zero, end = ((x - low) / (high - low) * 100 for x in (min(max(0.0, low), high), value))
    side = "below" if value < 0 else "above"
    start, width = min(zero, end), max(abs(end - zero), 0.8)
    return Markup(
        '<svg class="meter" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{kind} {side}" x="{start:.1f}" y="3" width="{width:.1f}" height="6"/>'
        f'<rect class="zero" x="{zero:.1f}" y="0" width="0.8" height="12"/></svg>'
    )


def _box(x: float, y: float, width: float, height: float, kind: str, words: str) -> str:
    """kind, words: ours, nothing that a record says; a step has ten thousand boxes, and escaping takes its time."""
    if width <= 0:
        return ""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{max(width, 1.0):.1f}" height="{height}">'
        f"<title>{words}</title></rect>"
    )


def _svg(shapes: Sequence[str], height: int, kind: str, words: str) -> Markup:
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{words}">{"".join(shapes)}</svg>'
    )


def _in_words(strips: Sequence[Strip]) -> str:
    return "; ".join(" and ".join(turn.kinds) for turn in strips)
