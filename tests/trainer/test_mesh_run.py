"""A run on eight devices, and one that goes on with fewer."""

import pytest

from jaxsearchrl.config_tree import with_values
from jaxsearchrl.telemetry.metrics_file import read_metrics

pytestmark = pytest.mark.slow


def test_a_run_on_eight_devices_goes_on_with_four_and_with_one(config, process, straight, state, tmp_path, monkeypatch):
    """It ends close to where one device alone ends: sums over devices are rounded in another order."""
    base = with_values(config, {"sampling.slots": 4, "learning.pack_rows": 4})
    for devices, steps, mesh in ((8, 2, (2, 2, 2)), (4, 4, (4, 1, 1)), (1, 6, (1, 1, 1))):
        monkeypatch.setenv("JAX_NUM_CPU_DEVICES", str(devices))
        sizes = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), mesh, strict=True))
        result = process(with_values(base, {**sizes, "train.steps": steps}), tmp_path)
        assert result.returncode == 0, result.stderr
        assert ("mesh of 8 devices: data 2 x fsdp 2 x tensor 2" in result.stderr) == (devices == 8)
    ours, theirs = ([row["reward"] for row in read_metrics(folder, "train")] for folder in (tmp_path, straight))
    assert ours == pytest.approx(theirs, abs=1e-6)
    ours, theirs = state(tmp_path), state(straight)
    for name in theirs:
        if "lora" in name:
            assert ours[name] == pytest.approx(theirs[name], abs=2e-4)
