"""A wheel says whether it has kernels, and nobody pays for what he does not use."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.conftest import ONE_THREAD, forked_python

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEAVY = {"altair", "vl_convert", "jinja2", "sklearn", "scipy", "h5py", "pyarrow", "PIL", "pandas"}


def build_wheel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a copy of what a wheel is made of."""
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    return subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel"],
        cwd=folder,
        env={**os.environ, "PHALANX_REQUIRE_KERNELS": "", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_a_wheel_without_kernels_is_named_for_it(tmp_path: Path) -> None:
    done = build_wheel(tmp_path, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    assert "THE C KERNELS WERE NOT BUILT" in done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        said = message_from_bytes(content.read(metadata))
        (kind,) = (name for name in names if name.endswith("dist-info/WHEEL"))
        assert b"Root-Is-Purelib: true" in content.read(kind)
    assert not [name for name in names if name.endswith(".so")]
    assert "phalanx/py.typed" in names
    assert said["Author"] == "Phalanx developers"
    assert said["Keywords"]
    assert len(said.get_all("Classifier")) > 5
    needed = [line for line in said.get_all("Requires-Dist") if "extra ==" not in line]
    assert not [line for line in needed if line.startswith(("altair", "scikit", "vl-", "jinja"))]


def test_a_build_for_others_fails_without_kernels(tmp_path: Path) -> None:
    done = build_wheel(tmp_path, CC="/bin/false", PHALANX_REQUIRE_KERNELS="1")
    assert done.returncode != 0
    assert not (tmp_path / "dist").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_wheel_with_kernels(tmp_path: Path) -> None:
    done = build_wheel(tmp_path, PHALANX_REQUIRE_KERNELS="1")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert "-cp311-abi3-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as content:
        modules = [name for name in content.namelist() if name.endswith(".so")]
        assert len(modules) == 2
        for name in modules:
            assert b".debug_info" not in content.read(name), "stripped"


def test_extras_hold_what_the_backend_does_without() -> None:
    extras = PROJECT["optional-dependencies"]
    core = " ".join(PROJECT["dependencies"])
    for package in ("altair", "jinja2", "scikit-learn", "vl-convert-python"):
        assert package not in core
        assert any(line.startswith(package) for line in extras["study"])
    assert "phalanx[data]" in extras["study"]
    assert "phalanx[study]" in extras["dev"]


# Packages that are not installed: whoever imports one gets what an environment without them gives.
# In a fork Phalanx and PyTorch are imported already, and have imported none of them.
WITHOUT_EXTRAS = f"""
import sys
assert not {HEAVY!r} & {{name.partition(".")[0] for name in sys.modules}}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import importlib.util
"""


def without_extras(
    program: str, *words: str, cwd: Path, python: Path | None = None
) -> subprocess.CompletedProcess[str]:
    file = cwd / "program.py"
    file.write_text(WITHOUT_EXTRAS + program)
    return subprocess.run(
        [python or forked_python(), file, *words],
        cwd=cwd,
        env={
            **os.environ,
            **ONE_THREAD,
            "XDG_CACHE_HOME": str(cwd / "cache"),
            "PHALANX_DATA": str(cwd),
        },
        capture_output=True,
        text=True,
        timeout=110,
    )


WITHOUT_KERNELS = "sys.modules['phalanx.comm._kernels'] = None\n"
COMMAND = "from phalanx.cli.main import main; main(sys.argv[1:])"


def test_backend_and_training_on_a_pack_import_no_extra(tmp_path: Path) -> None:
    backend = "import torch, torch.distributed as dist\ndist.init_process_group('mpi')\n"
    backend += "t = torch.ones(3); dist.all_reduce(t); print(t.sum().item())"
    done = without_extras(backend, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "3.0"
    assert "without C kernels" not in done.stderr
    interpreter = Path(sys.executable)  # a fork has imported the kernels
    done = without_extras(WITHOUT_KERNELS + backend, cwd=tmp_path, python=interpreter)
    assert done.stdout.split()[-1] == "3.0", done.stderr
    assert done.stderr.count("phalanx: installed without C kernels") == 1
    rows = "".join(f"{i / 7},{i % 5},{i % 2}\n" for i in range(60))
    (tmp_path / "t.csv").write_text(f"a,b,kind\n{rows}")
    words = ["data", "pack", "t.csv", "t.pack", "--target", "kind"]
    done = without_extras(COMMAND, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = ["train", "--data", "t.pack", "--epochs", "1", "--batch-size", "20"]
    done = without_extras(COMMAND, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epoch 1/1" in done.stdout


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (["report"], "this needs", "study"),
        (["study", "scaling"], "this needs", "study"),
        (["train"], "sklearn", "study"),
        (["data", "pack", "t.h5", "t.pack"], "h5py", "data"),
    ],
)
def test_a_missing_extra_is_one_line(
    words: list[str], package: str, extra: str, tmp_path: Path
) -> None:
    (tmp_path / "t.h5").write_bytes(b"no")
    done = without_extras(COMMAND, *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("phalanx: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert package in done.stderr
    assert f"pip install 'phalanx[{extra}]'" in done.stderr
