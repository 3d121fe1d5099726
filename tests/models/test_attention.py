"""The kernel for TPUs against attention by pairs of blocks, and which of the two a platform gets."""

import os
import subprocess
import sys
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxsearchrl.models.attention import attention, implementation, splash_attention, splash_on_mesh
from jaxsearchrl.models.packed_attention import packed_attention
from jaxsearchrl.models.sharding import AXES

# Two rows: a beginning of 100, which two segments share; two segments of their own, then padding.
T = 384
SEGMENTS = np.repeat([[1, 2, 3, 0], [2, 3, 0, 0]], [100, 120, 80, 84], axis=1)
POSITIONS = np.stack([np.r_[:100, 100:220, 100:180, [0] * 84], np.r_[:100, :120, [0] * 164]])


def inputs(N, K, H):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(2, T, heads, H)), jnp.float32) for heads in (N, K, K)]


@pytest.mark.parametrize(
    ("N", "K", "H", "window", "sinks"),
    [(4, 2, 64, None, False), (6, 2, 8, 60, True), (3, 1, 80, 130, False), (2, 2, 128, None, True)],
)
def test_the_kernel_gives_the_values_and_gradients_of_pairs_of_blocks(N, K, H, window, sinks):
    arguments = (*inputs(N, K, H), jnp.linspace(-1, 2, N) if sinks else None)
    real = jnp.asarray(SEGMENTS > 0)[..., None, None]
    direction = jax.random.normal(jax.random.key(1), arguments[0].shape) * real

    @partial(jax.jit, static_argnums=0)
    def pull(function):
        attend = lambda q, k, v, sinks: function(q, k, v, SEGMENTS, POSITIONS, window=window, sinks=sinks)  # noqa: E731
        out, vjp = jax.vjp(attend, *arguments)
        return out * real, vjp(direction)

    kernel = pull(partial(splash_attention, interpret=True))
    chex.assert_tree_all_finite(kernel)
    chex.assert_trees_all_close(kernel, pull(packed_attention), atol=1e-5)


@pytest.mark.parametrize(("sizes", "N", "K"), [((2, 1, 2, 1), 4, 2), ((1, 2, 2, 1), 6, 3), ((2, 1, 1, 2), 2, 1)])
def test_on_a_mesh_each_device_has_its_rows_and_heads(sizes, N, K):
    """In a process of four devices. Three heads of keys are not divided by two: they, and their queries, stay whole."""
    program = f"from tests.models.test_attention import on_mesh; on_mesh({sizes}, {N}, {K})"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    process = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


def on_mesh(sizes, N, K):
    mesh = Mesh(np.array(jax.devices()).reshape(sizes), AXES)
    arguments = (*inputs(N, K, 16), jnp.linspace(-1, 2, N))
    real = jnp.asarray(SEGMENTS > 0)[..., None, None]
    direction = jax.random.normal(jax.random.key(1), arguments[0].shape) * real

    def pull(function):
        attend = lambda q, k, v, sinks: function(q, k, v, SEGMENTS, POSITIONS, window=100, sinks=sinks)  # noqa: E731
        out, vjp = jax.vjp(attend, *arguments)
        return out * real, vjp(direction)

    found = jax.jit(lambda: pull(partial(splash_on_mesh, mesh, interpret=True)))()
    chex.assert_trees_all_close(found, pull(packed_attention), atol=1e-5)
    assert len(found[0].sharding.device_set) == 4


@pytest.mark.parametrize(("H", "dtype"), [(64, jnp.bfloat16), (80, jnp.float32), (256, jnp.bfloat16)])
def test_the_kernel_is_made_for_a_tpu(H, dtype):
    """Lowered, not run: its blocks and shapes are those that a TPU takes."""

    def loss(q, k, v, sinks):
        return splash_attention(q, k, v, SEGMENTS, POSITIONS, window=100, sinks=sinks).sum()

    q, k, v = (x.astype(dtype) for x in inputs(4, 2, H))
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).trace(q, k, v, jnp.zeros(4))
    assert traced.lower(lowering_platforms=("tpu",)).as_text().count("tpu_custom_call") >= 3  # forward, dq, dk and dv


def test_the_kernel_is_for_tpus_and_lengths_that_it_divides():
    assert implementation("tpu", 128) == implementation("tpu", 8192) == "splash"
    assert implementation("tpu", 1000) == "reference"
    assert implementation("tpu", 8192 + 128) == "reference"  # its mask is of T²
    assert implementation("gpu", 1024) == implementation("cpu", 1024) == "reference"


@pytest.mark.skipif(jax.default_backend() == "tpu", reason="gets the kernel")
def test_other_platforms_get_pairs_of_blocks():
    q, k, v = inputs(4, 2, 8)
    for asked in ({}, {"window": 60, "sinks": jnp.ones(4)}):
        chex.assert_trees_all_equal(
            attention(q, k, v, SEGMENTS, POSITIONS, **asked), packed_attention(q, k, v, SEGMENTS, POSITIONS, **asked)
        )
