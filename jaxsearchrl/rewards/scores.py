"""What an answer is worth, from what is known of it. `docs/maths.md` has each with a number worked by hand."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FormatWeights:
    """The weights of `structured_score`; the defaults are those of Search-R1 v0.3's runs."""

    structure: float = 0.2
    final: float = 0.1
    retrieval: float = 0.0


def structured_score(
    exact: bool, valid: bool, retrieved: bool, answered: bool, weights: FormatWeights = FormatWeights()
) -> float:
    """Search-R1's score with a format reward (v0.3; PeterGriffinJin/Search-R1, qa_em_format).

    valid: the format is kept; retrieved: a gold stood in what the environment returned. With s, f, r for
    structure, final and retrieval:

    | exact | valid format | otherwise | score |
    |---|---|---|---|
    | yes | yes | | 1 |
    | yes | no | | 1 - s |
    | no | yes | retrieved | s + r |
    | no | yes | not retrieved | s |
    | no | no | answered | f |
    | no | no | no answer | 0 |

    Raises ValueError for an exact match without an answer.
    """
    if exact and not answered:
        raise ValueError("an exact match without an answer")
    if exact:
        return 1.0 if valid else 1.0 - weights.structure
    if valid:
        return weights.structure + (weights.retrieval if retrieved else 0.0)
    return weights.final if answered else 0.0


def additive_score(exact: bool, valid: bool, weight: float = 0.1) -> float:
    """1 for an exact match, plus `weight` for a valid format (nano-agentrl; there 0.1 in the search run)."""
    return float(exact) + weight * valid


def penalised_score(exact: bool, answered: bool, penalty: float = 0.1) -> float:
    """1 for an exact match, 0 for another answer, -`penalty` for none (llm-agent-rl-lab's tool-call experiment).

    Raises ValueError for an exact match without an answer.
    """
    if exact and not answered:
        raise ValueError("an exact match without an answer")
    return float(exact) if answered else -penalty


def annealed(weight: float, step: int, steps: int) -> float:
    """A weight that falls from its full value at step 0 to zero at `steps` and stays there; 0 `steps` never anneal.

    weight · max(0, 1 - step / steps). Raises ValueError for a negative step or number of steps.
    """
    if step < 0 or steps < 0:
        raise ValueError(f"step {step} of {steps}: neither may be negative")
    return weight * max(0.0, 1 - step / steps) if steps else weight
