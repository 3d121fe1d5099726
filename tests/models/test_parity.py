"""Our forward pass, adapters and gradients against transformers and PEFT, on tiny random checkpoints.

The committed golden folders hold the same checkpoints with transformers' logits, so that the forward pass is checked
where torch is not installed. `python tests/models/test_parity.py` writes them anew.
"""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.models.architecture import Clamp, DeltaNet, Experts, Rope
from jaxsearchrl.models.decoder import build_model, forward, head_of
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.peft_adapter import adapter_of, from_peft, lora_of, read_adapter, to_peft, write_adapter
from jaxsearchrl.models.state import Packed
from jaxsearchrl.models.tiny import write_tiny_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = {"vocab_size": 61, "d_model": 24, "heads": 3, "kv_heads": 1, "head_dim": 8, "mlp_dim": 40, "max_positions": 64}
BIASES = {"qkv_bias": True, "o_bias": True}
YARN = Rope(100.0, "yarn", 4.0, original_positions=32, beta_fast=1.5, beta_slow=0.5, attention_factor=1.14)
CASES = {
    "llama_tied": ("llama", {"tied": True, "rope": Rope(theta=1e5)}),
    "llama_untied": ("llama", {"tied": False, "norm_eps": 1e-3}),
    "llama_linear_rope": ("llama", {"rope": Rope(kind="linear", factor=4.0, original_positions=64)}),
    "llama_dynamic_rope": ("llama", {"rope": Rope(kind="dynamic", factor=2.0, original_positions=64)}),
    "llama_llama3_rope": ("llama", {"rope": Rope(kind="llama3", factor=8.0, original_positions=16), "tied": False}),
    "llama_yarn_rope": ("llama", {"rope": YARN}),
    "llama_biases": ("llama", {**BIASES, "mlp_bias": True, "heads": 4, "kv_heads": 2, "head_dim": 6}),
    "qwen2_tied": ("qwen2", {"tied": True}),
    "qwen2_untied": ("qwen2", {"tied": False, "rope": Rope(theta=1e6), "layers": 3}),
    "qwen3_tied": ("qwen3", {"tied": True, "rope": Rope(theta=1e6), "head_dim": 10}),
    "qwen3_biases": ("qwen3", {**BIASES, "tied": False, "heads": 4, "kv_heads": 2, "layers": 3, "rope": YARN}),
    "qwen3_moe": ("qwen3_moe", {"tied": False, "experts": Experts(5, 2, 12, True), "dense_layers": (1,), "layers": 3}),
    "qwen3_moe_biases": ("qwen3_moe", {"experts": Experts(3, 2, 20, False), "dense_layers": (), **BIASES}),
    "qwen3_5": (
        "qwen3_5_text",
        {
            "tied": False,
            "layers": 5,
            "layer_kinds": ("linear_attention", "full_attention", "full_attention", *["linear_attention"] * 2),
            "delta": DeltaNet(key_heads=2, value_heads=6, key_dim=5, value_dim=7, kernel=4),
        },
    ),
    "qwen3_5_biases": (
        "qwen3_5_text",
        {
            **BIASES,
            "heads": 4,
            "kv_heads": 2,
            "layers": 3,
            "rope": Rope(theta=1e6, share=0.5),
            "delta": DeltaNet(key_heads=3, value_heads=3, key_dim=8, value_dim=4, kernel=2),
        },
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {"tied": False, "layers": 3, "experts": Experts(5, 2, 12, True, fused=True, shared_width=10)},
    ),
    "gpt_oss": ("gpt_oss", {"mlp_dim": 32, "rope": replace(YARN, truncate=False), "layers": 3}),
    "gpt_oss_wide": (
        "gpt_oss",
        {
            "tied": True,
            "heads": 4,
            "kv_heads": 2,
            "layers": 3,
            "layer_kinds": ("full_attention", "sliding_attention", "sliding_attention"),
            "window": 40,
            "mlp_dim": 20,
            "experts": Experts(7, 3, 20, True, fused=True, clamp=Clamp(0.5, 1.1)),
        },
    ),
}
TOKENS = np.random.default_rng(7).integers(0, SIZES["vocab_size"], (2, 40))


def write_case(folder, name):
    family, overrides = CASES[name]
    return write_tiny_checkpoint(folder, family, seed=3, **(SIZES | overrides))


def load(folder, lora=None):
    """The float32 model of a folder, by default without LoRA."""
    checkpoint = open_checkpoint(folder)
    model = build_model(checkpoint.architecture, lora or LoraConfig(rank=0))
    return model, load_base(model, checkpoint)


def logits_of(model, base, lora=None, tokens=TOKENS):
    """[B, T, V]; jitted, as it is used."""

    @jax.jit
    def run(base, lora, tokens):
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        hidden, _ = forward(model, base, lora, tokens, Packed(positions, jnp.ones_like(tokens)))
        return hidden @ head_of(base).T

    return run(base, lora or {}, jnp.asarray(tokens))


def random_lora(model):
    """Neither A nor B is zero."""
    rng = np.random.default_rng(11)
    return {n: jnp.asarray(rng.standard_normal(s) * 0.2, jnp.float32) for n, s in sorted(model.lora_shapes.items())}


def reference(folder, torch):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def reference_logits(model, torch):
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS)).logits.numpy()


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_golden_ones(name):
    golden = np.load(GOLDEN / name / "logits.npz")
    logits = logits_of(*load(GOLDEN / name), tokens=golden["tokens"])
    assert golden["logits"].std() > 0.5
    np.testing.assert_allclose(logits, golden["logits"], atol=1e-4)


@pytest.mark.parity
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name, tmp_path, torch):
    write_case(tmp_path, name)
    np.testing.assert_allclose(
        logits_of(*load(tmp_path)), reference_logits(reference(tmp_path, torch), torch), atol=1e-4
    )


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("llama_tied", ("q_proj", "down_proj")),
        ("llama_biases", LoraConfig().modules),
        ("qwen2_untied", LoraConfig().modules),
        ("qwen3_biases", LoraConfig().modules),
        ("qwen3_moe_biases", LoraConfig().modules),  # PEFT leaves dense MLPs beside experts as they are
        ("qwen3_5", LoraConfig().modules),
        ("qwen3_5_moe", LoraConfig().modules),
        ("gpt_oss", LoraConfig().modules),
        ("qwen3_5_moe", ("gate_up_proj",)),  # alone in its module, and no linear beside it
    ],
    ids=["llama", "llama biases", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "gpt_oss", "one parameter"],
)
def test_peft_loads_our_adapter_and_computes_our_logits(name, modules, tmp_path, torch):
    peft = pytest.importorskip("peft")
    arch = write_case(tmp_path / "base", name)
    config = LoraConfig(rank=3, alpha=5.0, modules=modules)
    model, base = load(tmp_path / "base", config)
    lora = random_lora(model)
    write_adapter(tmp_path / "adapter", arch, adapter_of(lora), model.lora, "base")
    theirs = peft.PeftModel.from_pretrained(reference(tmp_path / "base", torch), tmp_path / "adapter")
    ours = logits_of(model, base, lora)
    assert float(jnp.abs(ours - logits_of(*load(tmp_path / "base"))).max()) > 0.1  # the adapter does something
    np.testing.assert_allclose(ours, reference_logits(theirs, torch), atol=1e-4)


EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "targets", "parameters"),
    [
        ("qwen2_tied", ["k_proj", "o_proj", "gate_proj"], ()),
        ("qwen3_5", ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "q_proj", "v_proj"], ()),
        ("qwen3_5_moe", ["in_proj_a", "o_proj", "shared_expert_gate", "down_proj"], EXPERTS),
        ("qwen3_5_moe", r".*\.(out_proj|q_proj)", EXPERTS[:1]),
        ("qwen3_5_moe", None, EXPERTS[:1]),
        ("gpt_oss", ["q_proj", "v_proj"], EXPERTS),
    ],
)
def test_we_load_pefts_adapter_and_compute_its_logits(name, targets, parameters, tmp_path, torch):
    peft = pytest.importorskip("peft")
    arch = write_case(tmp_path / "base", name)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=targets, target_parameters=[*parameters], task_type="CAUSAL_LM"
    )
    theirs = peft.get_peft_model(reference(tmp_path / "base", torch), config).eval()
    torch.manual_seed(0)
    for parameter_name, parameter in theirs.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(tmp_path / "adapter")
    adapter, lora_config = read_adapter(tmp_path / "adapter", arch)
    assert (lora_config.rank, lora_config.alpha) == (4, 6.0)
    listed = ["out_proj", "q_proj"] if isinstance(targets, str) else targets or []
    assert set(lora_config.modules) == {*listed, *(parameter.rpartition(".")[2] for parameter in parameters)}
    model, base = load(tmp_path / "base", lora_config)
    np.testing.assert_allclose(logits_of(model, base, lora_of(adapter)), reference_logits(theirs, torch), atol=1e-4)


@pytest.mark.parametrize("turned", [True, False], ids=["out, in", "in, out"])
def test_pefts_factors_of_experts_are_ours_whichever_way_their_matrices_lie(turned, torch):
    peft = pytest.importorskip("peft")
    E, R, inputs, outputs = 3, 2, 5, 4

    class Module(torch.nn.Module):
        is_transposed = not turned  # so transformers calls [in, out]

        def __init__(self):
            super().__init__()
            self.down_proj = torch.nn.Parameter(torch.zeros(E, *((outputs, inputs) if turned else (inputs, outputs))))

    config = peft.LoraConfig(r=R, lora_alpha=6, target_parameters=["experts.down_proj"])
    wrapped = peft.get_peft_model(torch.nn.ModuleDict({"experts": Module()}), config).base_model.model["experts"]
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((E, inputs, R)), rng.standard_normal((E, R, outputs))
    for part, tensor in zip((wrapped.lora_A, wrapped.lora_B), to_peft(a, b), strict=True):
        assert part.default.weight.shape == tensor.shape
        part.default.weight.data = torch.from_numpy(np.ascontiguousarray(tensor))
    change = 3 * np.einsum("eir,ero->eoi" if turned else "eir,ero->eio", a, b)
    np.testing.assert_allclose(wrapped.get_delta_weight("default").detach().numpy(), change, atol=1e-5)
    for back, given in zip(from_peft(*to_peft(a, b), E), (a, b), strict=True):
        np.testing.assert_array_equal(back, given)


@pytest.mark.parity
@pytest.mark.parametrize(
    "name", ["llama_llama3_rope", "qwen2_tied", "qwen3_tied", "qwen3_moe_biases", "qwen3_5", "qwen3_5_moe", "gpt_oss"]
)
def test_lora_gradients_equal_torch_and_peft(name, tmp_path, torch):
    peft = pytest.importorskip("peft")
    arch = write_case(tmp_path / "base", name)
    config = LoraConfig(rank=3, alpha=5.0)
    model, base = load(tmp_path / "base", config)
    lora = random_lora(model)
    write_adapter(tmp_path / "adapter", arch, adapter_of(lora), model.lora, "base")

    def loss(lora):
        logprobs = jax.nn.log_softmax(logits_of(model, base, lora)[:, :-1])
        return -jnp.take_along_axis(logprobs, jnp.asarray(TOKENS[:, 1:, None]), axis=-1).sum()

    ours = adapter_of(jax.grad(loss)(lora))
    theirs = peft.PeftModel.from_pretrained(
        reference(tmp_path / "base", torch), tmp_path / "adapter", is_trainable=True
    )
    for parameter_name, parameter in theirs.named_parameters():
        parameter.requires_grad_(".lora_" in parameter_name or ".experts." in parameter_name)
    logprobs = theirs(torch.from_numpy(TOKENS)).logits[:, :-1].log_softmax(-1)
    (-logprobs.gather(-1, torch.from_numpy(TOKENS[:, 1:, None])).sum()).backward()
    if name == "qwen3_moe_biases":
        expected = _gradients_through_matrices(theirs, adapter_of(lora), config.alpha / config.rank)
    else:
        for parameter_name, parameter in theirs.named_parameters():
            if ".lora_" in parameter_name:
                parameter.data = parameter.grad
        theirs.save_pretrained(tmp_path / "gradients")
        expected, _ = read_adapter(tmp_path / "gradients", arch)
    checked = 0
    for linear, gradients in expected.items():
        for our, gradient in zip(ours[linear], gradients, strict=True):
            assert np.linalg.norm(our - gradient) < 1e-3 * np.linalg.norm(gradient), linear
            checked += 1
    assert checked == 2 * len(ours)


def _gradients_through_matrices(model, adapter, scale):
    """PEFT's gradients of A [in, R] and B [R, out] of each linear.

    It joins the adapters of experts' gate and up, so theirs come from the gradient G of the matrix W + scale (A B)T
    itself: scale GT BT and scale AT GT.
    """
    found = {}
    for name, parameter in model.named_parameters():
        linear = name.removeprefix("base_model.model.model.").split(".lora_")[0]
        if linear in adapter:
            found.setdefault(linear, {})[".lora_B" in name] = parameter.grad.numpy().T
        elif name.endswith(("experts.base_layer.gate_up_proj", "experts.base_layer.base_layer.gate_up_proj")):
            gate, up = parameter.grad.chunk(2, dim=1)
            found |= _of_experts(linear.split(".experts")[0], {"gate_proj": gate, "up_proj": up}, adapter, scale)
        elif ".experts." in name and name.endswith("down_proj"):
            found |= _of_experts(linear.split(".experts")[0], {"down_proj": parameter.grad}, adapter, scale)
    return {linear: (pair[False], pair[True]) for linear, pair in found.items()}


def _of_experts(mlp, stacks, adapter, scale):
    found = {}
    for module, stack in stacks.items():
        for expert, gradient in enumerate(stack.numpy()):
            a, b = adapter[f"{mlp}.experts.{expert}.{module}"]
            found[f"{mlp}.experts.{expert}.{module}"] = {
                False: scale * gradient.T @ b.T,
                True: scale * a.T @ gradient.T,
            }
    return found


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    for case in CASES:
        write_case(GOLDEN / case, case)
        logits = reference_logits(reference(GOLDEN / case, torch), torch)
        np.savez_compressed(GOLDEN / case / "logits.npz", tokens=TOKENS, logits=logits)
