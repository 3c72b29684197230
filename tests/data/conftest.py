"""Folders of the test's own: nobody's cache is read or written."""

from pathlib import Path

import pytest

SHARED_MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user's cache folder, and no $PHALANX_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def mnist_folder() -> Path:
    if not SHARED_MNIST.is_dir():
        pytest.skip("there is no copy of MNIST beside the repository (../shared/data/mnist)")
    return SHARED_MNIST


@pytest.fixture
def mnist_copy(mnist_folder: Path, tmp_path: Path) -> Path:
    """The four files of MNIST in a folder that a test may damage."""
    copy = tmp_path / "root" / "mnist"
    copy.mkdir(parents=True)
    for path in mnist_folder.glob("*.gz"):
        (copy / path.name).write_bytes(path.read_bytes())
    return copy
