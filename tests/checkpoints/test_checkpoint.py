"""Checkpoints: bit for bit, whole or not at all, never of another model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from phalanx.checkpoints.checkpoint import (
    load_checkpoint,
    model_files,
    parameters_sha256,
    write_checkpoint,
)
from phalanx.checkpoints.manifest import Manifest, verify
from phalanx.errors import UserError
from phalanx.models.build import build_model


def manifest(epochs_done: int) -> Manifest:
    return Manifest(
        phalanx="0",
        model="mlp",
        dtype="float32",
        optimizer="adam",
        dataset="digits",
        seed=0,
        global_batch_size=128,
        epochs_done=epochs_done,
    )


def save(folder: Path, model: nn.Module, optimizer: Optimizer, epochs_done: int = 1) -> Path:
    return write_checkpoint(folder, manifest(epochs_done), model_files(model, optimizer))


def step(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(images).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["mlp", "cnn", "rnn"])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_going_on_is_the_same_as_not_having_stopped(tmp_path: Path, name: str, kind: str) -> None:
    def make() -> tuple[nn.Module, Optimizer]:
        model = build_model(name, seed=3)
        parameters = model.parameters()
        if kind == "adam":
            return model, Adam(parameters, fused=True)
        return model, SGD(parameters, lr=0.1, momentum=0.9, fused=True)

    model, optimizer = make()
    step(model, optimizer, 0)
    path = save(tmp_path, model, optimizer)
    step(model, optimizer, 1)

    resumed, resumed_optimizer = make()
    load_checkpoint(path, resumed, resumed_optimizer)
    step(resumed, resumed_optimizer, 1)
    assert parameters_sha256(resumed) == parameters_sha256(model)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = build_model("mlp", seed=0)
    return save(tmp_path, model, Adam(model.parameters()))


def test_nothing_but_the_checkpoint_is_left(saved: Path) -> None:
    assert os.listdir(saved.parent) == ["epoch-0001"]
    assert sorted(os.listdir(saved)) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
    ]


def test_a_flipped_bit_is_found(saved: Path) -> None:
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors does not match the SHA-256"):
        verify(saved)


def test_a_truncated_file_is_found(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="bytes instead of"):
        verify(saved)


def test_a_missing_file_is_found(saved: Path) -> None:
    (saved / "optimizer.safetensors").unlink()
    with pytest.raises(UserError, match=r"optimizer\.safetensors is missing"):
        verify(saved)


def test_ranks_that_hold_the_model_do_not_import_dtensor() -> None:
    """It takes a third of a start."""
    heavy = {"torch.distributed.tensor", "torch.distributed.checkpoint"}
    program = f"import sys, phalanx.train.session; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="making a small file system needs root")
def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this machine does not allow mounting")
    try:
        model = build_model("mlp", seed=0)
        optimizer = Adam(model.parameters())
        step(model, optimizer, 0)
        first = save(disk, model, optimizer)
        with pytest.raises(
            UserError, match=r"could not be written.*earlier checkpoints are intact"
        ):
            save(disk, model, optimizer, 2)
        assert os.listdir(disk) == ["epoch-0001"]
        verify(first)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_state_lies_in_memory_as_its_parameter_does(tmp_path: Path) -> None:
    """Fused optimizers go through both by their addresses: state in another order than a parameter
    of channels last was that of other elements, and a resumed run became another one."""

    def make() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        model = nn.Conv2d(2, 4, 3)
        model.to(memory_format=torch.channels_last)
        return model, Adam(model.parameters(), fused=True)

    def update(model: nn.Module, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.arange(50.0).view(1, 2, 5, 5)).sin().sum().backward()
        optimizer.step()

    (model, optimizer), (other, others) = make(), make()
    update(model, optimizer)
    checkpoint = save(tmp_path, model, optimizer)
    load_checkpoint(checkpoint, other, others)
    for pair in ((model, optimizer), (other, others)):
        update(*pair)
    assert parameters_sha256(model) == parameters_sha256(other)
