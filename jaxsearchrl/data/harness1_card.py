"""The data card of a prepared subset, for people; the same numbers are in its manifest."""

from collections.abc import Mapping
from typing import Any

from jaxsearchrl.data.harness1_input import CHUNKS, HUB_ID, SHARDS

_NAMED = 5  # how many ids it names


def card(counts: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """A README of what was drawn, from what, and what was left out. recipe: the options, and the input's checksums."""
    source, corpus = counts["input"], counts["corpus"]
    options = {key: value for key, value in recipe.items() if key not in ("input", "data_set", "version")}
    questions, quotas, overlaps = counts["questions"], counts["quotas"], counts["overlaps_with_train"]
    place = f"{source['given']} {source['revision']}".rstrip()
    lines = [
        "# SEC filings: a subset of Harness-1's data for the curated-set task",
        "",
        f"Made from {place}, published as {HUB_ID} on the Hugging Face hub: {source['shards']} shards with",
        f"{source['chunks']:,} chunks; published are {SHARDS} with {CHUNKS:,}. The texts are filings to the SEC.",
        "The terms of the data set are its publisher's, and were not verified here.",
        "",
        f"Options: {', '.join(f'{key} {value}' for key, value in options.items())}.",
        "",
        "## Questions",
        "",
        *(f"* {split}.jsonl: {_listed(part)}" for split, part in questions.items()),
        *(f"* wanted for {split}: {_listed(part)}" for split, part in quotas.items()),
        *(f"* {split} shares with what is trained on: {_listed(shared)}" for split, shared in overlaps.items()),
        "",
        "Where train finds too few questions of 7 or 5 facts, questions of 5, then of 3 facts take their places.",
        "",
        "## Corpus",
        "",
        f"{corpus['chunks']:,} chunks: {corpus['gold']:,} gold, {corpus['neighbours']:,} near gold in the same filing,",
        f"and {corpus['drawn']:,} of all others, each drawn with probability {corpus['share_drawn']:.6f}.",
        f"{corpus['repeated']:,} more were left out because another chunk had their id before.",
        "",
        "## Left out",
        "",
        *_nested(counts["left_out"]),
        "",
        "## Demonstrations",
        "",
        *_nested(counts["demonstrations"]),
        "",
        "## Input, by sha256",
        "",
        *(f"* {part} {number}: {sha}" for part, sums in recipe["input"].items() for number, sha in enumerate(sums)),
    ]
    return "\n".join(lines) + "\n"


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in numbers.items())


def _nested(counts: Mapping[str, Any]) -> list[str]:
    return [f"* {name}: {_in_words(count)}" for name, count in counts.items()]


def _in_words(count: Any) -> str:
    if isinstance(count, Mapping):
        return _listed(count) or "none"
    if isinstance(count, list):
        such = f", such as {', '.join(count[:_NAMED])}" if count else ""
        return f"{len(count):,}{such}"
    return f"{count:,}"
