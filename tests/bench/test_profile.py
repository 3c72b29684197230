"""Profiles of a user's program, which is measured without a line of it changed."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.bench.profile import TrainingOfProgram, _middle, measure_profile
from phalanx.errors import UserError
from phalanx.plan.profile import read_profile

PROGRAM = """
import sys, torch, phalanx
torch.manual_seed(0)
size = int(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
data = torch.utils.data.TensorDataset(torch.rand(size, 64), torch.randint(8, (size,)))
run = phalanx.start(
    model, torch.optim.Adam(model.parameters()), {data}, epochs=3, strategy="mpi",
    checkpoint_dir="saved", run_dir="mine",
)
for epoch in run.epochs():
    for batch in epoch:
        {loop}
        run.step(batch, torch.nn.functional.cross_entropy)
open("after.txt", "w")
"""
LOADER = "torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, forking_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's folder; programs are forks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(forking_python))


def measured(
    *,
    samples: int,
    data: str = LOADER,
    loop: str = "pass",
    at_once: int = 1,
    program: str = PROGRAM,
) -> Path:
    Path("train.py").write_text(program.format(data=data, loop=loop))
    training = TrainingOfProgram(["train.py", str(samples)])
    console = Console(file=io.StringIO())
    folder = Path("profile")
    measure_profile(training, folder, most_ranks=2, at_once=at_once, console=console, run_s=0.05)
    return folder


def test_a_program_writes_nothing(tmp_path: Path) -> None:
    """5 steps are an epoch, and 12 or more are made."""
    found = read_profile(measured(samples=320))
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "profile"}
    assert not (tmp_path / "profile" / "checkpoints").exists()
    assert (found.program, found.global_batch, found.train_samples) == ("train.py 320", 64, 320)
    assert [(each.at_once, each.samples) for each in found.times] == [(1, 32), (1, 64)]
    assert all(each.peak_bytes > 10**7 for each in found.times)
    assert sum(each.bytes for each in found.gradients) == found.gradient_bytes
    assert [layer.name for layer in found.layers] == ["0", "1", "2"]
    assert found.saved_bytes >= sum(layer.saved_bytes for layer in found.layers) > 4 * 64
    assert found.no_split and "no plan for tensor parallelism" in found.no_split
    assert found.checkpoint_s and found.quantities == 2


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"loop": "if batch.step == 3: sys.exit()"}, "ended after 3 steps, and a plan needs 8"),
        ({"data": "[*data], batch_size=64, sharded=True"}, "makes its batches itself"),
        ({"data": "data, batch_size=0"}, "fails with its own batch: batch_size=0"),
        ({"loop": "assert len(batch.inputs) == 64"}, "fails with 32 samples a step: AssertionErr"),
    ],
)
def test_what_cannot_be_measured(parts: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        measured(samples=64, **parts)
    assert len(str(raised.value).splitlines()) <= 2


def test_whole_micro_batches_on_as_many_ranks_as_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 3 micro-batches, one of two ranks has two. A process per core of a large program would
    take all memory, and the machine with it."""
    monkeypatch.setattr("phalanx.bench.profile.usable_memory_bytes", lambda: 10**6)
    parts = PROGRAM.replace("epochs=3,", "epochs=3, micro_batches=3,")
    found = read_profile(measured(samples=320, at_once=2, program=parts))
    assert found.micro_batches == 3
    assert [(each.at_once, each.samples) for each in found.times] == [(1, 43), (1, 64)]
    assert not found.sums


def test_a_node_of_many_cores_is_measured_with_some_of_them_too() -> None:
    assert [_middle(cores) for cores in (1, 2, 3, 4, 8, 64)] == [1, 1, 1, 2, 4, 8]
