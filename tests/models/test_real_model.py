"""SmolLM2-135M-Instruct from its real .gguf file: does it read, speak and predict as a language model does?"""

import math

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import LoraConfig
from jaxsearchrl.data.assets import fetch_smollm2
from jaxsearchrl.gguf_header import read_header
from jaxsearchrl.models.decoder import build_model, forward, head_of
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.state import Packed

TEXT = """The moon is the only natural satellite of the Earth. It is about one quarter of the diameter of the Earth, and
it goes around the planet once in about twenty-seven days. The same side of the moon always faces us, because it turns
on its own axis in the same time that it takes to go around the Earth. The gravity of the moon causes the tides: the
water of the oceans rises and falls twice a day. In 1969, two astronauts walked on its surface for the first time, and
brought back rocks that scientists still study today.""".replace("\n", " ")


@pytest.fixture(scope="module")
def path():
    return fetch_smollm2()


@pytest.fixture(scope="module")
def tokenizer(path):
    return load_tokenizer(path)


@pytest.fixture(scope="module")
def logits_of(path):
    """ids -> logits [T, V]; rows are padded to a multiple of 32, so that few programs are compiled."""
    checkpoint = open_checkpoint(path)
    model = build_model(checkpoint.architecture, LoraConfig(rank=0))
    base = load_base(model, checkpoint)

    @jax.jit
    def run(base, tokens, segments):
        hidden, _ = forward(model, base, {}, tokens, Packed(jnp.arange(tokens.shape[1])[None], segments))
        return hidden[0] @ head_of(base).T

    def logits(ids):
        width = -(-len(ids) // 32) * 32
        tokens = np.zeros((1, width), np.int32)
        tokens[0, : len(ids)] = ids
        return run(base, jnp.asarray(tokens), jnp.asarray((np.arange(width) < len(ids))[None], jnp.int32))[: len(ids)]

    return logits


def test_the_header_reads_as_with_the_gguf_package(path):
    metadata, tensors = read_header(path)
    reader = gguf.GGUFReader(path)
    assert {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")} == metadata
    assert [t.name for t in reader.tensors] == list(tensors)
    for tensor in reader.tensors[::17]:
        assert tensor.data.tobytes() == tensors[tensor.name].data.tobytes()


def test_greedy_continuation_knows_the_capital_of_france(logits_of, tokenizer):
    ids = list(tokenizer.encode("The capital of France is"))
    for _ in range(3):
        ids.append(int(jnp.argmax(logits_of(ids)[-1])))
    assert "Paris" in tokenizer.decode(ids)


def test_perplexity_of_plain_english(logits_of, tokenizer):
    ids = np.asarray(tokenizer.encode(TEXT))
    logprobs = jax.nn.log_softmax(logits_of(ids)[:-1])
    nats = -np.asarray(logprobs)[np.arange(len(ids) - 1), ids[1:]]
    assert 7 < math.exp(nats.mean()) < 19
    shuffled = np.random.default_rng(0).permutation(ids)
    worse = -np.asarray(jax.nn.log_softmax(logits_of(shuffled)[:-1]))[np.arange(len(ids) - 1), shuffled[1:]]
    assert worse.sum() > 2 * nats.sum()


@pytest.mark.slow
@pytest.mark.parity
def test_logits_equal_transformers_own_reading_of_the_file(path, logits_of, tokenizer, torch):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ids = list(tokenizer.encode("Water boils at a temperature of"))
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(logits_of(ids), theirs, atol=2e-3)
