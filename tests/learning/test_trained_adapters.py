"""An adapter that the learner has trained, in PEFT: it computes what we compute, and not what the base does."""

import jax
import numpy as np
import pytest

from jaxsearchrl.config import LearningConfig, LoraConfig
from jaxsearchrl.learning.learner import Learner, make_update, policy_loss
from jaxsearchrl.learning.optimizer import make_optimizer
from jaxsearchrl.learning.packing import pack
from jaxsearchrl.models.decoder import build_model, init_lora
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.peft_adapter import adapter_of, read_adapter, write_adapter
from jaxsearchrl.models.tiny import write_tiny_checkpoint
from tests.models.test_parity import logits_of


@pytest.mark.parity
@pytest.mark.parametrize("family", ["qwen2", "qwen3_5_moe_text", "gpt_oss"])
def test_peft_computes_with_a_trained_adapter_what_we_compute(family, rows, tmp_path):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    write_tiny_checkpoint(tmp_path / "base", family, vocab_size=61)
    checkpoint = open_checkpoint(tmp_path / "base")
    model = build_model(checkpoint.architecture, LoraConfig(rank=2, alpha=8.0))
    base = load_base(model, checkpoint)
    lora = _trained(model, base, rows)
    assert all(np.any(value) for value in lora.values())  # each B has left zero

    write_adapter(tmp_path / "adapter", model.arch, adapter_of(lora), model.lora, "base")
    back, config = read_adapter(tmp_path / "adapter", model.arch)
    assert set(config.modules) == set(model.lora.modules)
    for linear, pair in adapter_of(lora).items():
        for read, written in zip(back[linear], pair, strict=True):
            np.testing.assert_array_equal(read, written)

    tokens = np.random.default_rng(7).integers(0, 61, (2, 20))
    ours = logits_of(model, base, lora, tokens)
    untrained = logits_of(model, base, init_lora(model, 0), tokens)
    assert np.abs(ours - untrained).max() > 0.1
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(reference, tmp_path / "adapter").eval()
    with torch.no_grad():
        np.testing.assert_allclose(ours, theirs(torch.from_numpy(tokens)).logits.numpy(), atol=1e-4)


def _trained(model, base, rows):
    """The adapter after three updates by rows that share their beginnings."""
    learner = Learner(model, base, policy_loss(LearningConfig()), vocab_size=61, temperature=1.0)
    optimizer = make_optimizer(LearningConfig(learning_rate=2e-2), 10)
    update, lora = make_update(optimizer), init_lora(model, 0)
    state, batches = optimizer.init(lora), pack(rows, pack_rows=1, pack_tokens=40).batches
    for _ in range(3):
        grads, _ = learner.gradient(lora, batches, 100.0)
        lora, state, stats = update(grads, state, lora)
        assert float(stats["updated"]) == 1
    return jax.device_get(lora)
