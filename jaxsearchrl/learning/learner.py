"""The LoRA update: packed batches in, new adapter out.

The forward and backward passes are driven from the host, a layer at a time: one program serves all layers of a kind,
the base weights stay the separate arrays that the sampler reads, and what is kept between the passes is one [B, T, D]
array per layer (a layer's inside is computed again in the backward pass). One program over all layers was measured to
need three times the memory on a CPU, where XLA's scheduler undoes rematerialisation, and half a minute to compile.

On a mesh each device has some of a batch's rows and the actions in them, and what is kept between the passes lies as
they do. A gradient is a
sum over rows, so the devices add up theirs: of the adapter alone, in the cut in which it lies. Of several processes
each gives its devices their rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxsearchrl.config import LearningConfig
from jaxsearchrl.learning.action_logprobs import action_logprobs
from jaxsearchrl.learning.losses import LossStats, policy_gradient, rerouted, supervised
from jaxsearchrl.learning.optimizer import Optimizer, apply_update
from jaxsearchrl.learning.packing import PackedBatch, parted
from jaxsearchrl.models.decoder import (
    Model,
    Weights,
    embed,
    final_norm,
    head_of,
    layer_forward,
    layer_weights,
)
from jaxsearchrl.models.sharding import ROW_AXES, lora_shardings, mesh_of, put, row_parts, rows, whole
from jaxsearchrl.models.state import Packed

Loss = Callable[[jax.Array, PackedBatch, jax.Array], tuple[jax.Array, LossStats]]
"""logprobs [A], batch, denominator [] -> loss [] and what it saw."""


def policy_loss(config: LearningConfig) -> Loss:
    """The loss of RL that the settings ask for; ratios are against the sampling log-probs."""

    def loss(logprobs: jax.Array, batch: PackedBatch, denominator: jax.Array) -> tuple[jax.Array, LossStats]:
        return policy_gradient(
            logprobs,
            batch.old_logprobs,
            batch.advantages,
            batch.weights,
            denominator,
            config,
            sampled=batch.sampled,
            reference=batch.reference_logprobs if config.kl_weight else None,
        )

    return loss


def supervised_loss(logprobs: jax.Array, batch: PackedBatch, denominator: jax.Array) -> tuple[jax.Array, LossStats]:
    """Cross-entropy of the action tokens (warm start)."""
    return supervised(logprobs, batch.weights, denominator)


class Learner:
    """Gradients of a loss for one model. `base` is shared with the sampler, `temperature` is what it samples at."""

    def __init__(self, model: Model, base: Weights, loss: Loss, *, vocab_size: int, temperature: float):
        self._depth, self._kinds, self._sparse = model.arch.layers, model.kinds, model.arch.experts is not None
        self._base = [layer_weights(base, i) for i in range(self._depth)]
        self._top = {name: value for name, value in base.items() if not name.startswith("layers.")}
        self._mesh = mesh_of(base)
        self._on = getattr(whole(base), "mesh", None)  # of one device too, in a plan: it tells the platform
        mesh = self._mesh
        of_adapter: Any = lora_shardings(model, mesh) if mesh else None

        def by_rows(x: jax.Array) -> jax.Array:
            return x if mesh is None else jax.lax.with_sharding_constraint(x, rows(x, mesh))

        def as_adapter(grads: Weights, kind: int) -> Weights:
            if of_adapter is None:
                return grads
            return jax.lax.with_sharding_constraint(grads, layer_weights(of_adapter, kind))

        def embedded(top: Weights, tokens: jax.Array) -> jax.Array:
            return by_rows(embed(top, tokens))

        def forward(
            kind: int, base: Weights, lora: Weights, x: jax.Array, state: Packed
        ) -> tuple[jax.Array, jax.Array | None]:
            x, state = layer_forward(model, base, lora, x, state, kind)
            return by_rows(x), state.routes

        def backward(
            kind: int, base: Weights, lora: Weights, x: jax.Array, state: Packed, x_grad: jax.Array, grads: Weights
        ) -> tuple[Weights, jax.Array]:
            _, pull = jax.vjp(lambda lora, x: forward(kind, base, lora, x, state)[0], lora, x)
            lora_grad, x_grad = pull(x_grad)
            return as_adapter(jax.tree.map(jnp.add, grads, lora_grad), kind), by_rows(x_grad)

        def actions(
            top: Weights, x: jax.Array, routes: jax.Array | None, index: jax.Array, targets: jax.Array, n: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
            """Log-probs, entropy and routes of the actions of some rows."""
            logprobs, entropy = action_logprobs(
                final_norm(model, top, x.reshape(-1, x.shape[-1])[index]),
                targets,
                head_of(top),
                temperature=temperature,
                vocab_size=vocab_size,
                n_actions=n.sum(),  # [1] for a device's part of a mesh
                axes=ROW_AXES if mesh else (),
            )
            return logprobs, entropy, None if routes is None else routes.reshape(-1)[index]

        if mesh:
            each = PartitionSpec(ROW_AXES)
            specs = {"in_specs": (PartitionSpec(), *[each] * 5), "out_specs": each, "axis_names": set(ROW_AXES)}
            actions = jax.shard_map(actions, mesh=mesh, check_vma=False, **specs)

        def head(
            top: Weights, x: jax.Array, batch: PackedBatch, denominator: jax.Array, routes: jax.Array | None = None
        ) -> tuple[jax.Array, LossStats]:
            def of_hidden(x: jax.Array) -> tuple[jax.Array, LossStats]:
                lists = (batch.action_index, batch.targets, batch.n_actions)
                logprobs, entropy, of_actions = actions(top, x, routes, *lists)
                value, stats = loss(logprobs, batch, denominator)
                more = {"loss": value * denominator, "entropy": entropy.sum()}
                if of_actions is not None:
                    more |= rerouted(of_actions, batch.routes)
                return value, LossStats({**stats.sums, **more}, stats.maxima)

            x_grad, stats = jax.grad(of_hidden, has_aux=True)(x)
            return by_rows(x_grad), stats

        def scores(top: Weights, x: jax.Array, batch: PackedBatch) -> jax.Array:
            return actions(top, x, None, batch.action_index, batch.targets, batch.n_actions)[0]

        self._embed = jax.jit(embedded)
        self._forward = jax.jit(forward, static_argnums=0)
        self._backward = jax.jit(backward, static_argnums=0, donate_argnums=(5, 6))
        self._head = jax.jit(head)
        self._scores = jax.jit(scores)

    def gradient(
        self,
        lora: Weights,
        batches: Sequence[PackedBatch],
        denominator: float,
        advance: Callable[[], None] = lambda: None,
        reference: Weights | None = None,
    ) -> tuple[Weights, LossStats]:
        """The sum of the batches' gradients, a tree like `lora`, and their statistics.

        reference: the adapter that a KL term is against; its log-probs are computed by a further forward pass.
        denominator: N · C, known before the first batch, so that the cut into batches cannot change the result.
        advance: called when a batch is done. Raises ValueError without a batch.
        """
        if not batches:
            raise ValueError("no batch to take a gradient of")
        layers = range(self._depth)
        adapters = [layer_weights(lora, i) for i in layers]
        grads = [jax.tree.map(jnp.zeros_like, adapter) for adapter in adapters]
        stats = []
        for batch in map(self._placed, batches):
            if reference is not None:
                batch = replace(batch, reference_logprobs=self._logprobs(reference, batch))
            state = self._state(batch)
            inputs, x, routes = [], self._embed(self._top, batch.tokens), state.routes
            for i in layers:
                inputs.append(x)
                layer = (self._kinds[i], self._base[i], adapters[i])
                x, routes = self._forward(*layer, x, replace(state, routes=routes))
            x_grad, seen = self._head(self._top, x, batch, denominator, routes)
            for i in reversed(layers):
                layer = (self._kinds[i], self._base[i], adapters[i])
                grads[i], x_grad = self._backward(*layer, inputs.pop(), state, x_grad, grads[i])
            stats.append(seen)
            jax.block_until_ready(x_grad)
            advance()
        total = reduce(LossStats.merged, jax.device_get(stats))
        return {f"layers.{i}.{name}": value for i in layers for name, value in grads[i].items()}, total

    def lower_programs(self, lora: Weights, batch: PackedBatch) -> dict[str, jax.stages.Lowered]:
        """The programs of `gradient` by name, ready to be compiled; those of layers once for each kind.

        The learner's base, lora and batch may be abstract, and sharded; hidden states are sharded as the tokens are.
        """
        of_tokens, width = batch.tokens.sharding, self._top["norm.weight"].shape[0]
        x = jax.ShapeDtypeStruct((*batch.tokens.shape, width), jnp.float32, sharding=of_tokens)
        routes: Any = None
        if self._sparse:
            routes = jax.ShapeDtypeStruct(batch.tokens.shape, jnp.uint32, sharding=of_tokens)
        state = Packed(batch.positions, batch.segments, routes, self._on)
        lowered = {
            "embed": self._embed.lower(self._top, batch.tokens),
            "head": self._head.lower(self._top, x, batch, jax.ShapeDtypeStruct((), jnp.float32), routes),
        }
        for kind in sorted(set(self._kinds)):
            layer, adapter = self._base[kind], layer_weights(lora, kind)
            lowered[f"forward {kind}"] = self._forward.lower(kind, layer, adapter, x, state)
            lowered[f"backward {kind}"] = self._backward.lower(kind, layer, adapter, x, state, x, adapter)
        return lowered

    def logprobs(self, lora: Weights, batch: PackedBatch) -> jax.Array:
        """Log-probs [A] of a batch's actions, 0 on padding; on a mesh in the order of the batch as `parted`."""
        return self._logprobs(lora, self._placed(batch))

    def _logprobs(self, lora: Weights, batch: PackedBatch) -> jax.Array:
        state, x = self._state(batch), self._embed(self._top, batch.tokens)
        for i in range(self._depth):
            x, _ = self._forward(self._kinds[i], self._base[i], layer_weights(lora, i), x, state)
        return self._scores(self._top, x, batch)

    def _placed(self, batch: PackedBatch) -> PackedBatch:
        """The batch where the weights are: some rows on each device, and the actions of these rows."""
        mesh = self._mesh
        if mesh is None:
            return batch
        batch = parted(batch, row_parts(mesh))
        return put(batch, jax.tree.map(lambda x: rows(x, mesh), batch))

    def _state(self, batch: PackedBatch) -> Packed:
        positions, segments = jnp.asarray(batch.positions), jnp.asarray(batch.segments)
        routes = jnp.zeros_like(positions, jnp.uint32) if self._sparse else None
        return Packed(positions, segments, routes, self._on)


def make_update(optimizer: Optimizer) -> Callable[[Weights, Any, Weights], tuple[Weights, Any, dict[str, jax.Array]]]:
    """(grads, opt_state, lora) -> (lora, opt_state, statistics), jitted; the old state and adapter are given up."""

    def update(grads: Weights, opt_state: Any, lora: Weights) -> tuple[Weights, Any, dict[str, jax.Array]]:
        return apply_update(optimizer, grads, opt_state, lora)

    return jax.jit(update, donate_argnums=(1, 2))
