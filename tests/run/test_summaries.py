"""Evaluations and summaries of a program say the same on any number of ranks, and by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR

import phalanx
from phalanx.data.sampler import epoch_order
from phalanx.run.program import ProgramRun
from tests.conftest import Ranks
from tests.run.programs.summaries import BATCH, EPOCHS, SAMPLES, data, network, trained


def by_hand() -> list[list[float]]:
    """Loss and accuracy of each epoch in training, then the accuracy after it on 21 samples."""
    model, (inputs, targets) = network(), data()
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.3), []
    for epoch in range(EPOCHS):
        losses, right = 0.0, 0
        for chosen in epoch_order(SAMPLES, 0, epoch).split(BATCH):
            outputs = model(inputs[chosen])
            loss = cross_entropy(outputs, targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += loss.item() * len(chosen)
            right += int((outputs.argmax(1) == targets[chosen]).sum())
        with torch.no_grad():
            hits = model(inputs[:21]).argmax(1) == targets[:21]
        found.append([losses / SAMPLES, right / SAMPLES, float(hits.double().mean())])
    return found


def test_one_process_says_what_a_loop_by_hand_finds() -> None:
    said = trained(None)
    for row, expected in zip(said["summaries"], by_hand(), strict=True):
        assert row == pytest.approx(expected, rel=1e-10)
    positions = said["found"][2::3]
    assert positions == [[0, 1, 0, 7], [1, 2, 0, 14]], "epoch, then epochs, samples and updates"


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_say_the_same(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    ranks.mpi(num_ranks, programs("summaries.py"), str(tmp_path))
    alone = trained(tmp_path / "alone")
    said = [json.loads((tmp_path / f"own-{rank}.json").read_text()) for rank in range(num_ranks)]
    for own in said:
        for row, expected in zip(own["found"], alone["found"], strict=True):
            assert row == pytest.approx(expected, rel=1e-10)
    for row, expected in zip(said[0]["summaries"], alone["summaries"], strict=True):
        assert row == pytest.approx(expected, rel=1e-10)
    counted = torch.tensor([own["counted"] for own in said], dtype=torch.float64).sum(0)
    torch.testing.assert_close(counted, torch.tensor(alone["counted"], dtype=torch.float64))
    last = num_ranks - 1
    for own in said:
        for name in ("mpi", "shared"):
            assert own["skipped"][name] == (
                f"step 0: gradients are not finite on rank {last}; the backward pass first "
                "produced them at first.weight"
            )
        assert "first.weight" in own["skipped"]["zero"]


def begun(folder: Path, *, resume: bool = False, **options: Any) -> tuple[nn.Module, ProgramRun]:
    model = network()
    rates = {"lr": options.pop("lr", 0.4), "weight_decay": options.pop("weight_decay", 0.0)}
    optimizer = torch.optim.SGD(model.parameters(), **rates)
    run = phalanx.start(
        model,
        optimizer,
        data(),
        scheduler=StepLR(optimizer, 7, gamma=0.5),
        batch_size=BATCH,
        checkpoint_dir=folder,
        resume=resume or None,
        checkpoints=phalanx.Checkpoints(**options),
        epochs=EPOCHS + resume,
    )
    return model, run


def finish(run: ProgramRun) -> list[float]:
    """Return the rate of each step."""
    rates = []
    for batch in run:
        rates.append(run._setup.optimizers[""].param_groups[0]["lr"])
        run.step(batch, cross_entropy)
    run.close()
    return rates


def test_options_of_the_program_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    own = {"width": 9, "schedule": "halves"}
    _, run = begun(tmp_path, options=own)
    assert finish(run) == [0.4] * 7 + [0.2] * 7
    with pytest.raises(phalanx.UserError, match="width of the program 9 there, 10 here"):
        begun(tmp_path, resume=True, options={**own, "width": 10})
    with pytest.raises(phalanx.UserError, match=r"optimizer weight_decay 0\.0 there, 0\.5 here"):
        begun(tmp_path, resume=True, options=own, weight_decay=0.5)
    _, run = begun(tmp_path, resume=True, options=own)
    assert run.resumed == own and run.position == (2, 0, 14)
    assert finish(run) == [pytest.approx(0.1)] * 7


def test_a_run_goes_on_by_what_it_is_given_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But its rate is where the scheduler has brought it, else one step had the first rate."""
    _, run = begun(tmp_path, options={"width": 9})
    finish(run)
    changed = {"options": {"width": 10}, "weight_decay": 0.5, "allow_changes": True}
    _, run = begun(tmp_path, resume=True, **changed)
    assert "epoch-0002, with changed options" in capsys.readouterr().out
    assert run.resumed == {"width": 9}
    assert run._setup.optimizers[""].param_groups[0]["weight_decay"] == 0.5
    assert finish(run) == [pytest.approx(0.1)] * 7


def test_within_an_epoch_the_samples_must_be_the_same(tmp_path: Path) -> None:
    _, run = begun(tmp_path, every_steps=3)
    for number, batch in enumerate(run):
        run.step(batch, cross_entropy)
        if number == 10:
            break
    run.close()
    for folder in tmp_path.glob("epoch-0002"):
        folder.rename(tmp_path.parent / "whole")
    model = network()
    with pytest.raises(phalanx.UserError, match="seed 0 there, 1 here"):
        phalanx.start(
            model,
            torch.optim.SGD(model.parameters(), lr=0.4),
            data(),
            batch_size=BATCH,
            epochs=EPOCHS,
            seed=1,
            checkpoint_dir=tmp_path,
            resume=True,
            checkpoints=phalanx.Checkpoints(allow_changes=True),
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"options": {"width": [9]}}, r"options=.* is not a mapping of names to numbers and texts"),
        ({"options": 3}, "is not a mapping of names"),
        ({"allow_changes": 1}, "allow_changes=1.* neither True nor False"),
    ],
)
def test_what_is_no_option_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(phalanx.UserError, match=words):
        phalanx.Checkpoints(**options)


def test_samples_without_numbers_have_no_some(tmp_path: Path) -> None:
    model = network()
    run = phalanx.start(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        ((row, target) for row, target in zip(*data(), strict=True)),
        batch_size=BATCH,
    )
    with pytest.raises(phalanx.UserError, match="data with __getitem__"):
        run.some_samples(3)
    run.close()
