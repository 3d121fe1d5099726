"""The products that decoding and learning stand on: one value in either form, and a gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.models.products import FEW_ROWS, rows_dot


def draw(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_both_forms_give_the_product(rows, batch):
    x, w = draw(*batch, rows, 5), draw(*batch, 7, 5)
    got = jax.jit(rows_dot)(x, w)
    np.testing.assert_allclose(got, x @ w.swapaxes(-1, -2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [2, FEW_ROWS + 1])
def test_both_forms_have_a_gradient(rows):
    x, w, g = draw(rows, 5), draw(7, 5), draw(rows, 7)
    value, pull = jax.vjp(rows_dot, x, w)
    x_grad, w_grad = pull(g.astype(value.dtype))
    np.testing.assert_allclose(x_grad, g @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(w_grad, g.T @ x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, FEW_ROWS + 1])
def test_bfloat16_weights_sum_in_float32(rows):
    x, w = jnp.full((rows, 4096), 1.0), jnp.ones((1, 4096), jnp.bfloat16)
    assert rows_dot(x, w).dtype == jnp.float32
    assert float(rows_dot(x, w)[0, 0]) == 4096.0
    assert float(rows_dot(x.at[0, 0].set(2.0), w)[0, 0]) == 4097.0  # bfloat16 has no 4097
