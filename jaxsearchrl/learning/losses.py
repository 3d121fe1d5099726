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

from jaxsearchrl.config import LearningConfig
from jaxsearchrl.models.routes import UNKNOWN

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


def policy_gradient(
    logprobs: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    weights: jax.Array,
    denominator: jax.Array | float,
    config: LearningConfig,
    *,
    sampled: jax.Array | float = 1.0,
    reference: jax.Array | None = None,
) -> tuple[jax.Array, LossStats]:
    """The loss of RL over A slots, (-Σ weight · gain + kl_weight · Σ weight · k3) / denominator. All [A] float32.

    denominator is N · C. With r = exp(logprob - old_logprob) and A the advantage, the gain of a token is, by
    `config.loss`:

    importance_sampling   r A
    truncated             min(r, cap) A logprob, where min(r, cap) is a constant (Ionides, 2008; IMPALA)
    ppo                   min(r A, clip(r) A), clip to [1 - clip_low, 1 + clip_high] (Schulman et al., arXiv:1707.06347)
    cispo                 clip(r) A logprob, where clip(r) is a constant (MiniMax-M1, arXiv:2506.13585)

    At r = 1 each has the gradient -A / denominator by a log-prob. Log-ratios are clamped to ±20, where their gradient
    ends. sampled: 0 on tokens that the policy did not sample (the ablation trains on them); their r is 1.
    k3 = exp(d) - d - 1 with d = reference - logprob (Schulman, "Approximating KL divergence", 2020) estimates
    KL(policy, reference) without bias and is never negative; above d = 20 it stays as it is there. Statistics:
    ratio, gap = |logprob - old_logprob| (also its maximum), logprob, clamped, clipped (tokens that a clip or cap holds
    back), kl.
    """
    real = weights > 0
    gap = jnp.where(real & (jnp.asarray(sampled) > 0), logprobs - old_logprobs, logprobs - stop_gradient(logprobs))
    gap = jnp.where(real, gap, 0.0)
    ratio = jnp.exp(jnp.clip(gap, -_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    own = jnp.where(real, logprobs, 0.0)
    clip = jnp.clip(ratio, 1 - config.clip_low, 1 + config.clip_high)
    match config.loss:
        case "importance_sampling":
            gain, clipped = ratio * advantages, jnp.zeros_like(ratio)
        case "truncated":
            gain = stop_gradient(jnp.minimum(ratio, config.ratio_cap)) * advantages * own
            clipped = ratio > config.ratio_cap
        case "ppo":
            gain = jnp.minimum(ratio * advantages, clip * advantages)
            clipped = clip * advantages < ratio * advantages
        case "cispo":
            gain, clipped = stop_gradient(clip) * advantages * own, clip != ratio
    loss = -jnp.sum(weights * gain) / denominator
    k3 = jnp.zeros_like(ratio)
    if reference is not None:
        behind = jnp.where(real, jnp.minimum(reference - own, _MAX_LOG_RATIO), 0.0)
        k3 = jnp.exp(behind) - behind - 1
        loss += config.kl_weight * jnp.sum(weights * k3) / denominator
    size = stop_gradient(jnp.abs(gap))
    sums = {
        "ratio": ratio,
        "gap": size,
        "logprob": own,
        "clamped": size > _MAX_LOG_RATIO,
        "clipped": clipped,
        "kl": k3,
    }
    stats = LossStats(
        sums={"tokens": jnp.sum(weights), **{name: jnp.sum(weights * stop_gradient(x)) for name, x in sums.items()}},
        maxima={"gap": jnp.max(size)},
    )
    return loss, stats


def rerouted(routes: jax.Array, sampler_routes: jax.Array) -> dict[str, jax.Array]:
    """Sums over A slots of what the routers chose, [A] uint32 each, for the learner and for the sampler.

    routed: tokens of which the sampler's route is known; rerouted: those of them that the learner routes otherwise.
    """
    known = sampler_routes != UNKNOWN
    other = known & (routes != sampler_routes)
    return {"routed": known.sum(dtype=jnp.float32), "rerouted": other.sum(dtype=jnp.float32)}


def supervised(logprobs: jax.Array, weights: jax.Array, denominator: jax.Array | float) -> tuple[jax.Array, LossStats]:
    """Cross-entropy of the warm start: -Σ weight · logprob / denominator over A slots. Statistics: logprob."""
    total = jnp.sum(jnp.where(weights > 0, weights * logprobs, 0.0))
    return -total / denominator, LossStats(
        sums={"tokens": jnp.sum(weights), "logprob": stop_gradient(total)}, maxima={}
    )
