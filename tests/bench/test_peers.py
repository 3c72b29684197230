"""Peers of other packages: what keeps a rank from them, and the command that adds them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.bench.paths import deepspeed, oneccl
from phalanx.bench.paths.path import BenchParams
from phalanx.comm.dtypes import DTYPES, ReduceOp

ONE_NODE, TWO_NODES = SimpleNamespace(on_one_node=True), SimpleNamespace(on_one_node=False)


def params(ranks: int = 2, dtype: str = "float32") -> BenchParams:
    return BenchParams(rank=0, ranks=ranks, dtype=DTYPES[dtype], op=ReduceOp.SUM)


def obstacle(world: Any = ONE_NODE, measured: BenchParams | None = None) -> str:
    return deepspeed.obstacle(world, measured or params())


def test_deepspeed_is_named_with_its_pip_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed, "find_spec", lambda _: None)
    assert obstacle() == "it is not installed: DS_ACCELERATOR=cpu pip install deepspeed"


def test_deepspeed_serves_several_ranks_of_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed, "find_spec", lambda name: name)
    space = SimpleNamespace(f_bavail=2**20, f_frsize=4096)
    monkeypatch.setattr(deepspeed.os, "statvfs", lambda _: space)
    assert obstacle() == ""
    assert obstacle(measured=params(dtype="int64")) == "it does not sum int64"
    assert obstacle(TWO_NODES) == "it needs several ranks on one node"
    assert obstacle(measured=params(ranks=1)) == "it needs several ranks on one node"
    space.f_bavail = 2**14  # 64 MB, as in a container
    assert obstacle() == "/dev/shm lacks the 70 MB per rank that it needs"


def test_oneccl_needs_files_of_two_packages_and_libfabric(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(oneccl, "FOLDER", tmp_path)
    assert "pip install --no-deps oneccl" in oneccl.obstacle()
    for name in oneccl.LIBRARIES[:-1]:
        (tmp_path / name).touch()
    assert "pip install --no-deps oneccl" in oneccl.obstacle()
    (tmp_path / oneccl.LIBRARIES[-1]).touch()
    assert oneccl.obstacle().startswith(f"there is no libfabric.so.1 in {tmp_path}")
    (tmp_path / "libfabric.so.1").touch()
    assert oneccl.obstacle() == ""
