"""Log-probs of the sampled tokens without an array of tokens by vocabulary.

The output head is frozen, so all that the backward pass needs of the vocabulary is one vector per token,

    d log p(y) / d hidden = (W[y] - E_p[W]) / temperature,

and the forward pass, which holds a chunk's logits anyway, computes it at once. The backward pass is a multiplication.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# In place of minus infinity: its softmax is exactly 0, and 0 times it is not NaN.
_EXCLUDED = -1e30


def action_logprobs(
    hidden: jax.Array,
    targets: jax.Array,
    head: jax.Array,
    *,
    temperature: jax.Array | float,
    vocab_size: int,
    n_actions: jax.Array | int,
    chunk: int = 128,
    axes: tuple[str, ...] = (),
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each target, and the entropy, under softmax(hidden · headᵀ / temperature) over ids below vocab_size.

    hidden [A, D], targets [A] int, head [V, D], n_actions [] int: traced, ceil(n_actions / chunk) chunks are worked on.
    Returns logprobs [A] and entropy [A], float32 nats, both exactly 0 from n_actions on. Products are taken in the
    head's dtype and summed in float32. The gradient of logprobs reaches `hidden` alone; entropy has none.
    axes: of the mesh, over whose devices lists are shared out under `shard_map`, each with its own n_actions.
    """
    slots = hidden.shape[0]
    padding = -slots % chunk
    logprobs, entropy = _differentiable(
        vocab_size,
        chunk,
        axes,
        jnp.pad(hidden, ((0, padding), (0, 0))),
        jnp.pad(targets, (0, padding)),
        head,
        jnp.asarray(temperature, jnp.float32),
        jnp.asarray(n_actions, jnp.int32),
    )
    return logprobs[:slots], entropy[:slots]


def _chunked(
    vocab_size: int,
    chunk: int,
    axes: tuple[str, ...],
    hidden: jax.Array,
    targets: jax.Array,
    head: jax.Array,
    temperature: jax.Array,
    n_actions: jax.Array,
    *,
    with_direction: bool,
) -> tuple[jax.Array, ...]:
    """logprobs [A], entropy [A] and, if asked for, d logprob / d hidden [A, D]; A is a multiple of `chunk`."""
    ids = jnp.arange(head.shape[0])[None]

    def body(i: jax.Array, buffers: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        start = i * chunk
        states = lax.dynamic_slice_in_dim(hidden, start, chunk).astype(head.dtype)
        labels = lax.dynamic_slice_in_dim(targets, start, chunk)[:, None]
        valid = start + jnp.arange(chunk) < n_actions

        logits = lax.dot_general(states, head, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        logits = jnp.where(ids < vocab_size, logits / temperature, _EXCLUDED)
        log_p = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        p = jnp.exp(log_p)
        logprob = jnp.take_along_axis(log_p, labels, axis=-1)[:, 0]
        entropy = -jnp.sum(p * log_p, axis=-1)
        values = [jnp.where(valid, logprob, 0.0), jnp.where(valid, entropy, 0.0)]
        if with_direction:
            # onehot(y) - p before the product: W[y] - E_p[W] would cancel in bfloat16 where p(y) is near 1.
            error = jnp.where(valid[:, None], (ids == labels) - p, 0.0)
            direction = jnp.dot(error.astype(head.dtype), head, preferred_element_type=jnp.float32) / temperature
            values.append(direction.astype(hidden.dtype))
        return tuple(lax.dynamic_update_slice_in_dim(b, v, start, 0) for b, v in zip(buffers, values, strict=True))

    buffers = [jnp.zeros(hidden.shape[0], jnp.float32)] * 2 + [jnp.zeros_like(hidden)] * with_direction
    # Devices wait for the longest list anyway; with as many rounds each, what they exchange within one always meets.
    longest = lax.pmax(n_actions, axes) if axes else n_actions
    return lax.fori_loop(0, (longest + chunk - 1) // chunk, body, tuple(buffers))


def _values(*arguments: Any) -> tuple[jax.Array, ...]:
    return _chunked(*arguments, with_direction=False)


def _forward(*arguments: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    logprobs, entropy, direction = _chunked(*arguments, with_direction=True)
    return (logprobs, entropy), direction


def _backward(
    vocab_size: int, chunk: int, axes: tuple[str, ...], direction: jax.Array, gradients: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None, None, None, None]:
    hidden_gradient = gradients[0][:, None] * direction
    return hidden_gradient.astype(direction.dtype), None, None, None, None


_differentiable = jax.custom_vjp(_values, nondiff_argnums=(0, 1, 2))
_differentiable.defvjp(_forward, _backward)
