"""Signs that a run looks healthy and learns nothing, in words that say where to look."""

from collections.abc import Mapping

# (metric, alarm above or below, threshold, what it means)
_RULES: tuple[tuple[str, str, float, str], ...] = (
    ("groups/no_signal", ">", 0.5, "most groups have equal rewards and teach nothing: other tasks, or more tries"),
    ("groups/all_bad", ">", 0.5, "no try of most questions earns anything: easier tasks or a warm start"),
    ("rate/empty", ">", 0.5, "most episodes hand over nothing: no document, no answer"),
    ("rate/finished", "<", 0.5, "most episodes do not end by `finish`: look at stop reasons, turns and context"),
    ("rate/truncated", ">", 0.2, "turns are cut by the token limit: raise sampling.max_turn_tokens"),
    ("calls/valid", "<", 0.7, "many tool calls fail: read a few rollouts"),
    ("calls/duplicate", ">", 0.3, "the policy repeats its calls"),
    ("entropy", "<", 0.05, "the policy hardly varies: a collapse, or the temperature is too low"),
    ("infrastructure/failed_share", ">", 0.05, "episodes are lost: look at infrastructure_errors in the records"),
    ("search/success_rate", "<", 0.95, "the search engine fails: what is learnt depends on it"),
    ("learn/logprob_gap", ">", 0.05, "sampler and learner disagree on log-probs (mean absolute difference, nats)"),
    ("learn/skipped", ">", 0.5, "rewards vary, but nothing was updated: learn/grad_norm is 0, or not all is finite"),
)
# A metric that raises no alarm where another one has this value: that one's alarm explains it.
_EXPLAINED = {"learn/skipped": ("groups/no_signal", 1.0)}


def alarms(metrics: Mapping[str, float]) -> list[str]:
    """One sentence per metric beyond its threshold; metrics that are absent raise no alarm."""
    explained = {name for name, (other, value) in _EXPLAINED.items() if metrics.get(other) == value}
    lines = []
    for name, side, threshold, meaning in _RULES:
        value = metrics.get(name)
        if value is not None and name not in explained and (value > threshold if side == ">" else value < threshold):
            lines.append(f"{name} is {value:.3g} ({side} {threshold:g}): {meaning}")
    return lines
