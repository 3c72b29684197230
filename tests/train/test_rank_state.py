"""What compressors and ranks of local SGD keep goes through a checkpoint: the parameters are those
of a run that was not broken off."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from phalanx.checkpoints.manifest import folder_name, verify
from phalanx.errors import UserError
from phalanx.records.events import NoticeEvent
from phalanx.records.files import read_events
from tests.conftest import Ranks

pytestmark = pytest.mark.mpi

SMALL: dict[str, Any] = {
    "strategy": "mpi", "dataset": "digits", "train_samples": 320, "validation_samples": 40,
    "epochs": 2, "batch_size": 64, "width": 40, "dtype": "float32",
}  # fmt: skip
BUCKETS = {"bucket_mb": 0.03}
CASES: dict[str, dict[str, Any]] = {
    "int8": {"compress": "int8", "checkpoint_steps": 3, **BUCKETS},  # from within an epoch
    "powersgd": {"compress": "powersgd", "powersgd_rank": 2, **BUCKETS},
    "topk": {"compress": "topk", "overlap": "on", **BUCKETS},
    "local": {"strategy": "local", "local_steps": 2, "outer_optimizer": "nesterov",
              "checkpoint_steps": 3},
}  # fmt: skip
FROM = {"int8": folder_name(1, 3 * 64), "local": folder_name(0, 3 * 64)}


def going_on(folder: Path, name: str, **others: Any) -> dict[str, Any]:
    """From where `folder/name` stood in the middle."""
    resume = folder / name / "saved-0" / FROM.get(name, "epoch-0001")
    saved = folder / f"{name} again" / "saved-{rank}"
    return {**SMALL, **CASES[name], "resume": str(resume), "checkpoint_dir": str(saved), **others}


def test_what_is_kept_is_part_of_a_checkpoint(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    """Each rank has a folder of its own: rank 0 writes what all keep."""
    cases = {
        name: {**SMALL, **case, "checkpoint_dir": str(tmp_path / name / "saved-{rank}")}
        for name, case in CASES.items()
    }
    cases |= {f"{name} again": going_on(tmp_path, name) for name in CASES}
    cases["others"] = going_on(tmp_path, "topk", compress="int8", checkpoint_dir=None)
    ranks.mpi(2, programs("resuming.py"), str(tmp_path), json.dumps(cases))
    for name in CASES:
        whole, again = (tmp_path / n / "saved-0/epoch-0002" for n in (name, f"{name} again"))
        files = ["kept-0.safetensors", "kept-1.safetensors"]
        assert sorted(os.listdir(whole))[:2] == files, "beside manifest, model and optimizer"
        for file in ("model.safetensors", "optimizer.safetensors", *files):
            expected, found = load_file(whole / file), load_file(again / file)
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], expected[key]) for key in expected), (name, file)
        assert not list(whole.parent.glob(".epoch-*"))
        assert not (whole.parents[1] / "saved-1").exists()
        assert told(tmp_path / f"{name} again") == []
    assert "the state of topk in" in told(tmp_path / "others")[0]

    cases = {"three": going_on(tmp_path, "int8")}
    ranks.mpi(3, programs("resuming.py"), str(tmp_path), json.dumps(cases))
    assert told(tmp_path / "three")[0].endswith(
        "is dropped: it is from 2 ranks, but this run has 3"
    )

    damaged = tmp_path / "damaged"
    shutil.copytree(tmp_path / "int8/saved-0/epoch-0002", damaged)
    (damaged / files[1]).write_bytes(b"")
    with pytest.raises(UserError, match=r"kept-1\.safetensors has 0 bytes"):
        verify(damaged)
    with pytest.raises(UserError, match="damaged"):
        verify(damaged, rank=1)
    verify(damaged, rank=0)


def told(folder: Path) -> list[str]:
    """What rank 1 was told."""
    events = read_events(folder / "rank-1.jsonl")
    return [event.text for event in events if isinstance(event, NoticeEvent)]
