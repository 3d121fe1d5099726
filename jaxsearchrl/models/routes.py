"""What the routers of a pass chose, as one number for each token, so that two passes can be compared at little cost."""

import jax
import jax.numpy as jnp

UNKNOWN = 0
"""The route of a token of which none is known. One in 2**32 others has it too."""


def routed_on(routes: jax.Array, ids: jax.Array) -> jax.Array:
    """Routes so far, [...] uint32, and the experts of one more layer, ids [..., chosen] -> routes, [...] uint32.

    The order of ids does not matter. If all choices but one are alike, routes differ: each step is one to one in what
    is not alike. Else they are equal by chance, once in 2**32.
    """
    return mixed(routes + mixed(ids.astype(jnp.uint32) + 1).sum(-1, dtype=jnp.uint32))


def mixed(x: jax.Array) -> jax.Array:
    """uint32 -> uint32, one to one, every bit of the result from all bits (MurmurHash3's finaliser, Appleby, 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
