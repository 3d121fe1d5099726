"""Loading: the declared weights in the declared dtype, onto one device or in shards, reading no byte twice.

What needs several devices runs once in another process (`python tests/models/test_loading.py FOLDER`), which reports.
"""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from jaxsearchrl.config import LoraConfig
from jaxsearchrl.errors import ConfigError
from jaxsearchrl.models.architecture import Experts
from jaxsearchrl.models.decoder import build_model
from jaxsearchrl.models.files import FolderCheckpoint, open_checkpoint
from jaxsearchrl.models.loading import load_base
from jaxsearchrl.models.tiny import write_tiny_checkpoint

ROOT = Path(__file__).parents[2]
SIZES = {"d_model": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp_dim": 96, "tied": False, "max_positions": 64}
EXPERTS = Experts(count=8, chosen=2, width=32, normalised=True)
LARGE = {"d_model": 512, "heads": 8, "kv_heads": 8, "head_dim": 64, "mlp_dim": 1024, "layers": 6, "tied": False}


class Counting(FolderCheckpoint):
    """Notes what is read: (name, bytes)."""

    def __init__(self, folder):
        super().__init__(folder)
        self.reads = []

    def tensor(self, name, index=()):
        part = super().tensor(name, index)
        self.reads.append((name, part.nbytes))
        return part


def write_sparse(folder):
    return write_tiny_checkpoint(folder, "qwen3_moe", vocab_size=40, experts=EXPERTS, **SIZES)


def model_of(checkpoint, dtype=jnp.float32):
    return build_model(checkpoint.architecture, LoraConfig(rank=0), dtype)


def test_weights_are_the_tensors_and_stacked_experts_are_transposed(tmp_path):
    write_sparse(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    model = model_of(checkpoint, jnp.bfloat16)
    base = load_base(model, checkpoint)
    assert base.keys() == model.specs.keys()
    for name, spec in model.specs.items():
        assert base[name].dtype == jnp.bfloat16
        if "*" in spec.hf_name:
            expected = np.stack([tensors[spec.hf_name.replace("*", str(i))].T for i in range(EXPERTS.count)])
        else:
            expected = tensors[spec.hf_name]
        np.testing.assert_array_equal(base[name], expected.astype(ml_dtypes.bfloat16), err_msg=name)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"heads": 2}, r"o_proj.weight: shape \(64, 32\) in the checkpoint, \(64, 64\) expected"),
        ({"experts": Experts(8, 2, 33, True)}, r"experts.0.down_proj.weight: shape \(64, 33\) .*, \(64, 32\) expected"),
    ],
)
def test_a_tensor_of_another_shape_is_named(tmp_path, other, message):
    arch = write_sparse(tmp_path / "one")
    write_tiny_checkpoint(tmp_path / "two", "qwen3_moe", vocab_size=40, **(SIZES | {"experts": EXPERTS} | other))
    with pytest.raises(ConfigError, match=message):
        load_base(build_model(arch, LoraConfig(rank=0)), open_checkpoint(tmp_path / "two"))


# ------------------------------------------------------------------------------------------------------- eight devices


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    command = [sys.executable, __file__, str(folder)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


def test_shards_hold_what_one_device_holds(report):
    assert report["devices"] == 8
    assert report["wrong"] == []


def test_every_byte_is_read_once_also_where_devices_share_a_part(report):
    for layout in ("eighths", "quarters"):
        assert report[layout]["read"] == report["stored"]


def test_a_shard_reads_its_part_and_no_more(report):
    """Matrices in eighths: eight reads of an eighth. Experts: each is read for one device, whole."""
    reads = report["eighths"]["of"]
    assert reads["model.layers.0.self_attn.q_proj.weight"] == [64 * 64 * 4 // 8] * 8
    assert reads["model.layers.1.mlp.experts.5.down_proj.weight"] == [64 * 32 * 4]
    assert reads["model.norm.weight"] == [64 * 4]  # on every device
    reads = report["quarters"]["of"]
    assert reads["model.layers.0.self_attn.q_proj.weight"] == [64 * 64 * 4 // 4] * 4
    assert reads["model.layers.1.mlp.experts.5.down_proj.weight"] == [64 * 32 * 4 // 4] * 4


@pytest.mark.parametrize("layout", ["one device", "eight devices"])
def test_the_host_holds_little_more_than_one_tensor(report, layout):
    """As stored (half of it here), in the declared dtype, and the one before, which JAX lets go a moment later."""
    measured = report["memory"][layout]
    assert measured["total"] > 20 * measured["largest"]  # so that holding all would show
    assert measured["peak"] <= 3 * measured["largest"]


def shardings(model, mesh, axes):
    """axes: for weights of one, two and three axes, along which axes of the mesh they are cut."""
    return {name: NamedSharding(mesh, PartitionSpec(*axes[len(spec.shape)])) for name, spec in model.specs.items()}


def measure_reads(folder):
    write_sparse(folder)
    model = model_of(open_checkpoint(folder))
    plain = load_base(model, open_checkpoint(folder))
    # In eighths: matrices by rows, experts by number. In quarters, the parts on two devices each: by columns, and the
    # inputs of experts.
    layouts = {"eighths": ((8,), "x", {1: (), 2: ("x",), 3: ("x",)})}
    layouts["quarters"] = ((4, 2), "xy", {1: (), 2: (None, "x"), 3: (None, "x")})
    found = {"devices": jax.device_count(), "wrong": []}
    for layout, (sizes, names, axes) in layouts.items():
        mesh = jax.make_mesh(sizes, tuple(names))
        checkpoint = Counting(folder)
        placed = shardings(model, mesh, axes)
        base = load_base(model, checkpoint, placed)
        for name, weight in base.items():
            same = weight.sharding == placed[name] and weight.dtype == plain[name].dtype
            if not same or not np.array_equal(weight, plain[name]):
                found["wrong"].append((layout, name))
        of = {}
        for name, count in checkpoint.reads:
            of.setdefault(name, []).append(count)
        found[layout] = {"read": sum(map(sum, of.values())), "of": of}
    found["stored"] = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    return found


def measure_memory(folder):
    """Beyond the loaded arrays: what was allocated at the highest, less what is left of it at the end."""
    write_tiny_checkpoint(folder, "llama", vocab_size=1024, **LARGE)
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()}, folder / "model.safetensors")
    del tensors
    checkpoint = open_checkpoint(folder)
    model = model_of(checkpoint)
    sizes = [4 * np.prod(spec.shape) for spec in model.specs.values()]
    mesh = jax.make_mesh((8,), ("x",))
    found = {}
    for layout, placed in (("one device", None), ("eight devices", shardings(model, mesh, {1: (), 2: ("x",)}))):
        load_base(model, checkpoint, placed)  # what JAX itself keeps
        tracemalloc.start()
        base = load_base(model, checkpoint, placed)
        left, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(base) == len(sizes)
        found[layout] = {"peak": peak - left, "largest": int(max(sizes)), "total": int(sum(sizes))}
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(json.dumps(measure_reads(folder / "sparse") | {"memory": measure_memory(folder / "large")}))
