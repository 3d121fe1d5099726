"""Losses as pure functions of arrays: sums over action tokens divided by a number that the host knows beforehand.

Because nothing is averaged inside, the losses and gradients of a step's batches add up to those of the whole step,
however its rows were padded, packed or split. Dr. GRPO (arXiv:2503.20783) divides by N · C: N the valid trajectories of
the step, C a constant of the configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

# exp(20) is 5e8: far beyond any ratio that means something, far below what overflows in a sum of float32.
_MAX_LOG_RATIO = 20.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LossStats:
    """What a loss saw, so that it adds up over batches: sums over action tokens, and maxima. All [] float32.

    sums always has "tokens", the number of action tokens.
    """

    sums: Mapping[str, jax.Array]
    maxima: Mapping[str, jax.Array]

    def merged(self, other: "LossStats") -> "LossStats":
        """The statistics of both, which must come from the same loss; on the host, where nothing is compiled for it."""
        return LossStats(
            sums={name: value + other.sums[name] for name, value in self.sums.items()},
            maxima={name: max(value, other.maxima[name]) for name, value in self.maxima.items()},
        )

    def means(self) -> dict[str, float]:
        """Means per action token, the maxima as "max_…", and "tokens"; on the host. Without a token, only the count."""
        tokens = float(self.sums["tokens"])
        if not tokens:
            return {"tokens": 0.0}
        return {
            "tokens": tokens,
            **{name: float(value) / tokens for name, value in self.sums.items() if name != "tokens"},
            **{f"max_{name}": float(value) for name, value in self.maxima.items()},
        }


def importance_sampling(
    logprobs: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    weights: jax.Array,
    denominator: jax.Array | float,
) -> tuple[jax.Array, LossStats]:
    """-Σ weight · advantage · exp(logprob - old_logprob) / denominator over A slots; no clip, no KL.

    All [A] float32; denominator is N · C. At ratio 1 the gradient by a log-prob is -advantage / denominator. Log-ratios
    are clamped to ±20, where their gradient ends. Statistics: ratio, gap = |logprob - old_logprob| (also its maximum),
    logprob, clamped.
    """
    real = weights > 0
    gap = jnp.where(real, logprobs - old_logprobs, 0.0)
    ratio = jnp.exp(jnp.clip(gap, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    loss = -jnp.sum(weights * advantages * ratio) / denominator
    size = stop_gradient(jnp.abs(gap))
    stats = LossStats(
        sums={
            "tokens": jnp.sum(weights),
            "ratio": jnp.sum(weights * stop_gradient(ratio)),
            "gap": jnp.sum(weights * size),
            "logprob": jnp.sum(jnp.where(real, weights * stop_gradient(logprobs), 0.0)),
            "clamped": jnp.sum(weights * (size > _MAX_LOG_RATIO)),
        },
        maxima={"gap": jnp.max(size)},
    )
    return loss, stats


def supervised(logprobs: jax.Array, weights: jax.Array, denominator: jax.Array | float) -> tuple[jax.Array, LossStats]:
    """Cross-entropy of the warm start: -Σ weight · logprob / denominator over A slots. Statistics: logprob."""
    total = jnp.sum(jnp.where(weights > 0, weights * logprobs, 0.0))
    return -total / denominator, LossStats(
        sums={"tokens": jnp.sum(weights), "logprob": stop_gradient(total)}, maxima={}
    )
