"""Packs in a program, with the readers, cache, stage and policies of `phalanx train --data`."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import phalanx
from tests.conftest import Ranks, long
from tests.data.packs import make_pack
from tests.run.programs.packed import CASES, trained


def images(folder: Path) -> Path:
    return make_pack(folder, samples=53, shape=(3, 4, 4), dtype="uint8")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("packs") / "images")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of its samples for training is another than was packed, and one for validation."""
    folder = images(tmp_path_factory.mktemp("packs") / "damaged")
    for split in ("train", "validation"):
        file = sorted((folder / split).glob("*inputs*.npy"))[1]
        content = bytearray(file.read_bytes())
        content[-10] ^= 255
        file.write_bytes(content)
    return folder


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, long(3), long(4)])
def test_programs_agree_with_one_process(
    num_ranks: int,
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
    pack: Path,
    damaged: Path,
) -> None:
    names = [name for name in CASES if name != "damaged"]
    (tmp_path / "other").mkdir()
    ranks.mpi(num_ranks, programs("packed.py"), str(pack), str(tmp_path), *names)
    output = ranks.mpi(
        num_ranks, programs("packed.py"), str(damaged), str(tmp_path / "other"), "damaged"
    )
    assert re.search(r"damaged/validation: skipped 1 damaged so far: sample \d+$", output, re.M)
    for name in CASES:
        is_damaged = name == "damaged"
        truth = trained(damaged if is_damaged else pack, name, tmp_path)
        for rank in range(num_ranks):
            folder = tmp_path / "other" if is_damaged else tmp_path
            found = torch.load(folder / f"{rank}.pt")[name]
            for key, value in truth.items():
                assert (found[key] - value).abs().max() < 1e-10, (name, rank, key)
    assert not any((tmp_path / "stage").iterdir())


def test_a_damaged_sample_is_left_out_and_told(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(damaged, "damaged", tmp_path)
    told = capsys.readouterr().out
    assert len(re.findall(r"skipped \d+ damaged so far: sample \d+", told)) == 2
    with pytest.raises(phalanx.UserError, match="damaged"):
        trained(damaged, "bitwise", tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"readers": -1}, r"readers=-1\): it is not a whole number from 0"),
        ({"prefetch": 0}, r"prefetch=0\): it is not a whole number from 1"),
        ({"reader_kind": "thread"}, "it is not one of threads, processes"),
        ({"damaged": "keep"}, "it is not one of stop, skip"),
        ({"dtype": "int8"}, "it is not one of float32, float64"),
        ({"cache_mb": -1.0}, r"cache_mb=-1.0\): it is not a number from 0"),
        ({"cache_mb": 1.0, "reader_kind": "processes"}, "would have a separate cache; use threads"),
        ({"stage_mb": 3.0}, "needs a stage: also give stage="),
        ({"keep_staged": True}, "needs a stage: also give stage="),
    ],
)
def test_options_that_do_not_fit_are_told(options: dict[str, Any], text: str) -> None:
    with pytest.raises(phalanx.UserError, match=text):
        phalanx.Packed("digits.pack", **options)


@pytest.mark.parametrize(
    ("reading", "options", "text"),
    [
        ({"damaged": "skip"}, {"bitwise": True}, "bitwise=True needs every sample"),
        ({}, {"sharded": True}, "sharded=True is not for phalanx.Packed"),
        ({}, {"loading": {"num_workers": 1}}, "loading=.* is not for phalanx.Packed"),
    ],
)
def test_runs_that_do_not_fit_are_told(
    pack: Path, reading: dict[str, Any], options: dict[str, Any], text: str
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = phalanx.Packed(pack, **reading)
    with pytest.raises(phalanx.UserError, match=text):
        phalanx.start(model, optimizer, data, batch_size=16, **options)


def test_folders_that_are_no_pack_are_told(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for folder, words in [
        (tmp_path / "nowhere", "Packed: .*nowhere: there is no such folder"),
        (tmp_path, r"there is no train/index\.json in it"),
    ]:
        with pytest.raises(phalanx.UserError, match=words):
            phalanx.start(model, optimizer, phalanx.Packed(folder), batch_size=4)
