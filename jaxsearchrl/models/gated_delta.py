"""The gated delta rule: a memory that maps keys to values, of fixed size however long the text.

Each token lets the memory S [key, value] decay, reads what its key finds there and corrects it towards its own value:

    S_t = e^{g_t} S_{t-1},   S_t += k_t (beta_t (v_t - S_tᵀ k_t))ᵀ,   out_t = S_tᵀ q_t

(Yang et al., 2024, arXiv:2412.06464). Token by token that is T small steps; here a chunk of tokens is taken at once:
what its tokens write follows from a triangular system (Yang et al., 2024, arXiv:2406.06484), and the memory goes from
chunk to chunk. All in float32, whatever the weights.
"""

import jax
import jax.numpy as jnp
from jax import lax

CHUNK = 64


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array,
    segments: jax.Array,
    memory: jax.Array,
    *,
    packed: bool,
) -> tuple[jax.Array, jax.Array]:
    """q, k [B, T, heads, Dk], v [B, T, heads, Dv], g, beta [B, T, heads], segments [B, T] -> out as v, and a memory.

    g: the logarithm of the decay, at most 0. Segment 0 is padding, which leaves the memory alone. memory
    [B, heads, Dk, Dv]: where segment 1, with which a row begins, starts from; returned is where it ends. packed: there
    may be later segments, contiguous each, which start from the end of segment 1; else all is segment 1 or padding.
    """
    B, T, heads, _ = q.shape
    C = min(CHUNK, T)
    n = -(-T // C)

    def chunks(x: jax.Array) -> jax.Array:
        """[B, T, heads, ...] -> [n, B, heads, C, ...], float32."""
        x = jnp.pad(x.astype(jnp.float32), [(0, 0), (0, n * C - T), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(x.reshape(B, n, C, *x.shape[2:]), (1, 3), (0, 2))

    segments = jnp.pad(segments, [(0, 0), (0, n * C - T)]).reshape(B, n, C).swapaxes(0, 1)
    real = (segments > 0)[:, :, None]
    q, k, v, g, beta = chunks(q), chunks(k), chunks(v), chunks(g[..., None])[..., 0], chunks(beta[..., None])[..., 0]
    g, beta = jnp.where(real, g, 0.0), jnp.where(real, beta, 0.0)

    same = (segments[..., None] == segments[..., None, :])[:, :, None]
    passed = jnp.cumsum(g, axis=-1)  # decay since the chunk's start
    apart = passed[..., None] - passed[..., None, :]
    decay = jnp.exp(jnp.where(same & jnp.tril(jnp.ones((C, C), bool)), apart, -jnp.inf))  # from column to row
    index = jnp.arange(C)
    firsts = jnp.where(same, index, C).min(-1)  # of each position's segment in its chunk
    lasts = jnp.where(same, index, -1).max(-1)
    before = jnp.take_along_axis(passed - g, jnp.broadcast_to(firsts, passed.shape), axis=-1)
    after = jnp.take_along_axis(passed, jnp.broadcast_to(lasts, passed.shape), axis=-1)
    since_start, until_end = jnp.exp(passed - before)[..., None], jnp.exp(after - passed)[..., None]

    # What the tokens write into an empty memory, and what they take off one that is not: rows of (I + A)^-1.
    k_beta = k * beta[..., None]
    system = jnp.tril(_dot("nbhid,nbhjd->nbhij", k_beta, k) * decay, -1) + jnp.eye(C)
    written = jnp.concatenate([v * beta[..., None], k_beta * since_start], axis=-1)
    written = lax.linalg.triangular_solve(system, written, left_side=True, lower=True, unit_diagonal=True)
    values, readers = jnp.split(written, [v.shape[-1]], axis=-1)
    scores = _dot("nbhid,nbhjd->nbhij", q, k) * decay
    readers = jnp.concatenate([readers, q * since_start], axis=-2)  # [n, B, heads, 2 C, Dk]

    def read(memory: jax.Array, readers: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What the writers and the queries of a chunk find in a memory, [B, heads, C, Dv] each."""
        found = _dot("bhid,bhdv->bhiv", readers, memory)
        return found[:, :, :C], found[:, :, C:]

    def write(memory: jax.Array, mine: jax.Array, g: jax.Array, k: jax.Array, new: jax.Array) -> jax.Array:
        """The memory after the tokens of one segment; mine [B, 1, C]."""
        kept = jnp.exp(jnp.where(mine, g, 0.0).sum(-1))[..., None, None]
        return memory * kept + _dot("bhid,bhiv->bhdv", jnp.where(mine[..., None], k, 0.0), new)

    def step(carry: tuple, chunk: tuple) -> tuple[tuple, jax.Array]:
        shared, running, running_segment = carry
        values, readers, scores, k, g, segment = chunk
        segment = segment[:, None]
        ones = segment == 1
        off, found = (jnp.where(ones[..., None], x, 0.0) for x in read(shared, readers))
        new = jnp.where(ones[..., None], values, 0.0) - off
        shared = write(shared, ones, g, k, new)
        if packed:
            later, goes_on = segment > 1, segment == running_segment[:, None, None]
            for memory, mine in ((running, later & goes_on), (shared, later & ~goes_on)):
                off, more = (jnp.where(mine[..., None], x, 0.0) for x in read(memory, readers))
                new, found = new + jnp.where(mine[..., None], values, 0.0) - off, found + more
            ends = segment == segment[..., -1:]
            start = jnp.where(goes_on[..., -1, None, None], running, shared)
            running, running_segment = write(start, ends, g, k, new), segment[:, 0, -1]
        return (shared, running, running_segment), found + _dot("bhij,bhjv->bhiv", scores, new)

    start = (memory, jnp.zeros_like(memory), jnp.zeros(B, segments.dtype))
    # Between the passes the memories from chunk to chunk are kept; a chunk's inside is computed again.
    (memory, _, _), out = lax.scan(jax.checkpoint(step), start, (values, readers, scores, k * until_end, g, segments))
    return jnp.moveaxis(out, (0, 2), (1, 3)).reshape(B, n * C, heads, -1)[:, :T], memory


def _dot(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    # Accelerators round float32 factors by default; here errors would go from token to token.
    return jnp.einsum(subscripts, a, b, precision=lax.Precision.HIGHEST)
