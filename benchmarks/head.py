"""Memory of the output head in the learner: compiled for a large vocabulary, not run."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks.measure import measured
from jaxsearchrl.learning.action_logprobs import action_logprobs


@dataclass(frozen=True)
class Head:
    """The head of Qwen2.5-0.5B over two rows of 8,192 tokens."""

    tokens: int = 2 * 8192
    vocabulary: int = 151936
    width: int = 896


def run_head(_size: str, work: Head) -> dict[str, float]:
    """Temporaries of the log-probs with their gradient, beside one float32 array of tokens by vocabulary."""

    def gradient(hidden: jax.Array, targets: jax.Array, head: jax.Array, n_actions: jax.Array) -> jax.Array:
        def total(hidden: jax.Array) -> jax.Array:
            sizes = {"temperature": 1.0, "vocab_size": work.vocabulary, "n_actions": n_actions}
            return action_logprobs(hidden, targets, head, **sizes)[0].sum()

        return jax.grad(total)(hidden)

    shape = jax.ShapeDtypeStruct
    with measured() as compiling:
        compiled = (
            jax.jit(gradient)
            .lower(
                shape((work.tokens, work.width), jnp.float32),
                shape((work.tokens,), jnp.int32),
                shape((work.vocabulary, work.width), jnp.float32),
                shape((), jnp.int32),
            )
            .compile()
        )
    memory = compiled.memory_analysis()
    assert memory is not None, "this backend does not report memory"
    return {
        "temporary GiB": memory.temp_size_in_bytes / 2**30,
        "tokens x vocabulary GiB": work.tokens * work.vocabulary * 4 / 2**30,
        "first call s": compiling.seconds,
        "compilations": compiling.compilations,
    }
