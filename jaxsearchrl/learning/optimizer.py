"""AdamW on the LoRA weights, in units that do not depend on the loss's constant.

The loss is divided by N · C, so its gradient is multiplied by C before anything else looks at it: the clipping
threshold, Adam's epsilon and the logged norm are then those of a sum over an episode's tokens, averaged over episodes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxsearchrl.config import LearningConfig

PyTree = Any


@dataclass(frozen=True)
class Optimizer:
    """`direction` turns scaled gradients into steps of rate 1; `learning_rate` is a function of the update count.

    The state is that of `direction` and holds the count, so a restored state continues the schedule.
    """

    direction: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    gradient_scale: float

    def init(self, lora: PyTree) -> optax.OptState:
        """Zero moments. Raises TypeError unless every LoRA weight is float32: bfloat16 would swallow small updates."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(lora):
            if leaf.dtype != jnp.float32:
                raise TypeError(f"LoRA weight {jax.tree_util.keystr(path)} is {leaf.dtype}; it must be float32")
        return self.direction.init(lora)


def make_optimizer(config: LearningConfig, total_steps: int) -> Optimizer:
    """AdamW with clipping by global norm (if max_grad_norm is above 0) and the configured schedule."""
    clip = optax.clip_by_global_norm(config.max_grad_norm) if config.max_grad_norm > 0 else optax.identity()
    return Optimizer(
        direction=optax.chain(
            clip,
            optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps),
            optax.add_decayed_weights(config.weight_decay),
        ),
        learning_rate=learning_rate_schedule(config, total_steps),
        gradient_scale=config.loss_constant,
    )


def learning_rate_schedule(config: LearningConfig, total_steps: int) -> Callable[[jax.Array], jax.Array]:
    """The learning rate as a function of the number of updates made so far, [] int → [] float32.

    Update n of the first W = warmup_steps has the rate · (n + 1) / W; then "constant" stays, "linear" and "cosine" fall
    to reach 0 at total_steps, so that the last update still has a rate above 0.
    """

    def learning_rate(updates: jax.Array) -> jax.Array:
        warm = jnp.minimum(1.0, (updates + 1) / max(config.warmup_steps, 1))
        progress = jnp.clip((updates - config.warmup_steps) / max(total_steps - config.warmup_steps, 1), 0.0, 1.0)
        if config.schedule == "linear":
            decay = 1.0 - progress
        elif config.schedule == "cosine":
            decay = 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        else:
            decay = 1.0
        return jnp.asarray(config.learning_rate * warm * decay, jnp.float32)

    return learning_rate


def apply_update(
    optimizer: Optimizer, grads: PyTree, opt_state: optax.OptState, lora: PyTree
) -> tuple[PyTree, optax.OptState, dict[str, jax.Array]]:
    """One update; jitted by the caller, with lora and opt_state donated.

    grads: the step's whole gradient, a tree like lora. Where its norm is zero (no signal) or not finite, weights,
    moments and count stay as they are. Statistics, all [] float32: grad_norm (in units of gradient · loss_constant),
    learning_rate, updated (1 or 0).
    """
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) * optimizer.gradient_scale, grads)
    grad_norm = optax.global_norm(grads)
    updated = jnp.isfinite(grad_norm) & (grad_norm > 0)
    learning_rate = optimizer.learning_rate(optax.tree_utils.tree_get(opt_state, "count"))
    steps, new_state = optimizer.direction.update(grads, opt_state, lora)
    new_lora = jax.tree.map(lambda weight, step: weight - learning_rate * step, lora, steps)

    def keep_old_unless_updated(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(updated, new, old)

    stats = {"grad_norm": grad_norm, "learning_rate": learning_rate, "updated": updated.astype(jnp.float32)}
    return (
        jax.tree.map(keep_old_unless_updated, new_lora, lora),
        jax.tree.map(keep_old_unless_updated, new_state, opt_state),
        stats,
    )
