"""The environment that JAX starts in."""

import os
import platform
import subprocess
import sys

import pytest

from jaxsearchrl.runtime import announce_devices, prepare

NAMES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_THREEFRY_PARTITIONABLE",
    "TF_CPP_MIN_LOG_LEVEL",
)


@pytest.fixture
def environment(monkeypatch, tmp_path):
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that monkeypatch puts back whatever `prepare` leaves
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAXSEARCHRL_CACHE", str(tmp_path))
    return monkeypatch


def test_what_the_user_set_stays(environment):
    environment.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    prepare()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "/elsewhere"
    assert "JAX_DEFAULT_MATMUL_PRECISION" not in os.environ
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ


def test_jax_reads_what_prepare_sets(environment, tmp_path):
    code = (
        "from jaxsearchrl.runtime import prepare; prepare(exact_float32=True); import jax;"
        "c = jax.config; print(c.jax_compilation_cache_dir, c.jax_default_matmul_precision);"
        "print(c.jax_threefry_partitionable)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.split() == [str(tmp_path / "xla"), "highest", "True"]


def test_the_backend_is_announced(capsys):
    announce_devices(require_accelerator=False)
    assert " on cpu: " in capsys.readouterr().out


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("settings", "kept"), [({}, True), ({"MALLOC_ARENA_MAX": "2"}, False)])
def test_freed_memory_is_kept_unless_the_user_set_the_allocator(environment, settings, kept):
    for name, value in settings.items():
        environment.setenv(name, value)
    code = (
        "import resource, threading; from jaxsearchrl.runtime import prepare; prepare();"
        "work = lambda: [len(b'x' * 2**27) for _ in range(4)];"  # 128 MiB each, one after another
        "run = lambda: (t := threading.Thread(target=work), t.start(), t.join());"
        "run(); before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; run();"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert (int(result.stdout) < 2000) == kept  # four arrays are 131,072 pages of 4 KiB
