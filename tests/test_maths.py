"""The numbers that docs/maths.md works by hand and that no other test has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig, LoraConfig
from jaxsearchrl.learning.optimizer import apply_update, make_optimizer
from jaxsearchrl.models.decoder import Linear, rms_norm
from jaxsearchrl.models.state import KeyValues, Packed, Slots
from jaxsearchrl.sampling.choose import choose
from jaxsearchrl.search.index import open_or_build


def chosen(probabilities, uniforms, temperature=1.0):
    logits = jnp.log(jnp.tile(jnp.asarray(probabilities), (len(uniforms), 1)))
    temperatures = jnp.full(len(uniforms), temperature)
    return jax.jit(choose, static_argnums=3)(logits, jnp.asarray(uniforms), temperatures, len(probabilities))


def test_the_inverse_cdf_of_four_ids():
    ids, logprobs = chosen([0.1, 0.2, 0.3, 0.4], [0.05, 0.15, 0.45, 0.95])
    assert ids.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(logprobs, np.log([0.1, 0.2, 0.3, 0.4]), rtol=1e-5)
    # Squared, the probabilities are 1, 4, 9 and 16 thirtieths: sums 0.03, 0.17, 0.47, 1.
    ids, logprobs = chosen([0.1, 0.2, 0.3, 0.4], [0.02, 0.15, 0.45, 0.48], temperature=0.5)
    assert ids.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(logprobs, np.log(np.array([1, 4, 9, 16]) / 30), rtol=1e-5)


def test_temperature_zero_takes_the_first_of_the_most_likely():
    ids, logprobs = chosen([0.1, 0.4, 0.1, 0.4], [0.95], temperature=0.0)
    assert ids.tolist() == [1]
    np.testing.assert_allclose(logprobs, np.log([0.4]), rtol=1e-5)


def test_the_inverse_cdf_over_blocks():
    wanted = [0, 255, 256, 299, 511, 512, 599]
    ids, _ = chosen([1 / 600] * 600, [(i + 0.5) / 600 for i in wanted])
    assert ids.tolist() == wanted


def test_rms_norm():
    normed = rms_norm(jnp.array([3.0, 4.0]), jnp.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(normed, [0.848528, 2.262742], rtol=1e-6)


def test_a_linear_with_lora():
    lora = LoraConfig(rank=1, alpha=2.0, modules=("q_proj",))
    linear = Linear("layer.q_proj", (2, 1), ("width", "heads"), False, lora, jnp.float32)
    assert linear.lora_a is not None
    assert linear.lora_b is not None
    linear.weight[...] = jnp.ones((1, 2))
    linear.lora_a[...], linear.lora_b[...] = jnp.array([[1.0], [0.5]]), jnp.array([[3.0]])
    assert linear(jnp.array([[1.0, 2.0]])).tolist() == [[15.0]]


def test_the_running_softmax_over_two_blocks():
    keys, values = np.log([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 4.0])
    one = jnp.ones((1, 1, 1, 1))
    # The cache holds the first two; the third comes with the query. The fourth place is free.
    cached = [jnp.asarray([*x[:2], 0, 0], jnp.float32).reshape(1, 1, 4) for x in (keys, values)]
    slots = Slots((KeyValues(*cached),), jnp.array([0]), jnp.array([[2]]), jnp.int32(2), 4, block=2, all_slots=True)
    out, _ = slots.attend(0, one, one * keys[2], one * values[2])
    np.testing.assert_allclose(out.reshape(1), [3.0], rtol=1e-6)

    packed = Packed(jnp.arange(3)[None], jnp.ones((1, 3), jnp.int32))
    row = [jnp.asarray(x, jnp.float32).reshape(1, 3, 1, 1) for x in (np.ones(3), keys, values)]
    out, _ = packed.attend(0, *row)
    np.testing.assert_allclose(out.reshape(3), [1.0, 5 / 3, 3.0], rtol=1e-6)
    of_last = jax.grad(lambda q, k, v: packed.attend(0, q, k, v)[0][0, 2, 0, 0], argnums=(0, 1, 2))(*row)
    wanted = [[0, 0, 6 / 7 * np.log(2)], [-2 / 7, -2 / 7, 4 / 7], [1 / 7, 2 / 7, 4 / 7]]
    np.testing.assert_allclose(np.reshape(of_last, (3, 3)), wanted, atol=1e-6)


@pytest.mark.parametrize(("eps", "step"), [(1e-8, 1 / 11), (1e-15, 0.999999)])
def test_adams_step_is_free_of_scale_only_far_above_epsilon(eps, step):
    optimizer = make_optimizer(LearningConfig(learning_rate=1.0, loss_constant=1.0, eps=eps), 1)
    lora = {"w": jnp.zeros(1)}
    lora, _, _ = apply_update(optimizer, {"w": jnp.array([1e-9])}, optimizer.init(lora), lora)
    np.testing.assert_allclose(-lora["w"], [step], rtol=1e-5)


def test_bm25_of_a_word_that_all_documents_have(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "text": "calm a"}\n{"id": "2", "text": "calm b"}\n')
    hits = open_or_build(corpus).search("calm", 2)
    assert [hit.document.id for hit in hits] == ["1", "2"]
    assert [hit.score for hit in hits] == pytest.approx([np.log(1.2)] * 2, abs=1e-4)
