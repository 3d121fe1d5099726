import pytest


@pytest.fixture
def torch():
    """torch on one thread; the test is skipped where it is not installed."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch
