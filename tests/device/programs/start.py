"""Each rank: `phalanx.start` on a device, against one process on the CPU.

Arguments: cuda, cpu, the name of an emulated device or of a mixture, and the name of a check. Ranks
may share one.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.device.emulated import use
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, Dataset, TensorDataset

import phalanx
from phalanx.jobs.detect import detect
from phalanx.records.files import rank_file

DEVICE: Any = use(sys.argv[1]).type
CLOSE = 1e-11
torch.manual_seed(1)
DATA = torch.randn(50, 6, dtype=torch.float64), torch.randint(3, (50,))


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """One by one, by workers."""

    def __len__(self) -> int:
        return len(DATA[0])

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return DATA[0][number], DATA[1][number]


class Model(nn.Module):
    """Has a buffer, and draws where it is asked to."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 40), nn.Linear(40, 3)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.last(self.dropout(torch.tanh(self.first(inputs))) * self.scale)
        return hidden


def model_of(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(2)
    return Model(dropout).double()


def error(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def train(
    kind: Any = AdamW,
    *,
    data: object = DATA,
    device: str = DEVICE,
    dropout: float = 0.0,
    model: nn.Module | None = None,
    spoils: bool = False,
    **options: Any,
) -> nn.Module:
    model = model_of(dropout) if model is None else model
    own = data() if callable(data) else data
    given = {"epochs": 3, **({} if isinstance(own, DataLoader) else {"batch_size": 16}), **options}
    optimizer = kind(model.parameters(), lr=0.05)
    run = phalanx.start(model, optimizer, own, device=device, **given)
    for batch in run:
        loss = F.cross_entropy(run.model(batch.inputs), batch.targets)
        run.backward(loss * float("nan") if spoils and batch.step == 2 else loss)
    score = run.evaluate(error, DATA if next(model.parameters()).dtype == torch.float64 else own)
    assert 0 < score < 2, score
    model.score = score  # type: ignore[assignment]
    run.close()
    return model


def alone(*arguments: Any, **options: Any) -> nn.Module:
    """Train in this process alone, on the CPU, whatever ranks a launcher has started."""
    from mpi4py import MPI

    return train(*arguments, device="cpu", comm=MPI.COMM_SELF, **options)


def difference(model: nn.Module, truth: nn.Module) -> float:
    pairs = zip(model.parameters(), truth.parameters(), strict=True)
    parts = [float((one.detach().cpu() - other.detach().cpu()).abs().max()) for one, other in pairs]
    return max(*parts, abs(float(model.score) - float(truth.score)))  # type: ignore[arg-type]


def equal(*arguments: Any, most: float = CLOSE, **options: Any) -> str:
    found = difference(train(*arguments, **options), alone(*arguments, **options))
    assert found <= most, found
    return f"{found:.2g}"


def loader() -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(*DATA),
        batch_size=16,
        num_workers=2,
        pin_memory=True,
        multiprocessing_context="forkserver",
    )


def autocast() -> str:
    data = DATA[0].float(), DATA[1]
    truth = alone(SGD, data=data, model=model_of().float())
    found = difference(train(SGD, data=data, model=model_of().float(), autocast="bf16"), truth)
    assert 0 < found < 0.05, found
    return f"{found:.2g}"


def bad_gradients() -> str:
    """A step whose gradients are not finite is left out; without that an error names it."""
    found = equal(spoils=True, bad_gradients="skip")
    try:
        train(spoils=True)
    except phalanx.UserError as error:
        assert "step 2: gradients are not finite" in str(error), error
        if dist.is_initialized():  # of the run that has failed
            dist.destroy_process_group()
        return found
    raise AssertionError("no error")


def checkpoints(strategy: str) -> str:
    """Saved on the GPU and resumed on the CPU, and the other way round."""
    worst = 0.0
    with shared_folder() as folder:
        for number, (first, then) in enumerate(
            ((DEVICE, "cpu"), ("cpu", DEVICE), (DEVICE, DEVICE))
        ):
            place = folder / str(number)
            common = {
                "checkpoint_dir": place,
                "checkpoints": phalanx.Checkpoints(every_steps=2),
                "strategy": strategy,
            }
            train(device=first, epochs=1, **common)
            model = train(device=then, resume=True, **common)
            worst = max(worst, difference(model, alone()))
    assert worst <= CLOSE, worst
    return f"{worst:.2g}"


def thirty_steps() -> str:
    """Left after 13, and resumed within an epoch."""
    with shared_folder() as folder:
        common: dict[str, Any] = {"epochs": 8, "checkpoint_dir": folder}
        train(steps=13, **common)
        found = difference(train(steps=30, resume=True, **common), alone(epochs=8, steps=30))
    assert found <= 1e-10, found
    return f"{found:.2g}"


def records() -> str:
    with shared_folder() as folder:
        model = train(
            run_dir=folder / "run",
            records=phalanx.Records(trace=True),
            checkpoint_dir=folder / "checkpoints",
        )
        names = sorted(path.name for path in (folder / "run").iterdir())
        launched = detect(os.environ)
        written = (folder / "run" / rank_file(Path(), launched.rank if launched else 0)).read_text()
        assert f'"device":"{next(model.parameters()).device}"' in written
    return " ".join(names)


def default_device() -> str:
    """New tensors are made on the GPU; those of a run's samples and checkpoints are not."""
    truth, model = alone(), model_of()
    torch.set_default_device(DEVICE)
    try:
        with shared_folder() as folder:
            common = {"checkpoint_dir": folder / "checkpoints", "model": model}
            found = difference(train(data=Samples(), **common), truth)
    finally:
        torch.set_default_device(None)
    assert found <= CLOSE, found
    return f"{found:.2g}"


def gather() -> str:
    """A loss over the global batch, whose rows come from all ranks."""

    def contrastive(device: str, **options: Any) -> nn.Module:
        model = model_of()
        optimizer = SGD(model.parameters(), lr=0.05)
        given = {"batch_size": 16, "epochs": 2, "device": device, **options}
        run = phalanx.start(model, optimizer, DATA, **given)
        for batch in run:
            rows = run.gather(run.model(batch.inputs))
            run.backward((rows @ rows.T).logsumexp(0).mean())
        model.score = run.step_loss
        run.close()
        return model

    from mpi4py import MPI

    found = difference(contrastive(DEVICE), contrastive("cpu", comm=MPI.COMM_SELF))
    assert found <= CLOSE, found
    return f"{found:.2g}"


def refused() -> str:
    """What has no path on GPUs is refused in a line; on the CPU it trains."""
    launched = detect(os.environ)
    if DEVICE == "cpu" or launched is None or launched.world_size == 1:
        return "on the CPU and on one rank nothing is"
    texts = []
    cases: Sequence[dict[str, Any]] = (
        {"strategy": "gloo"},
        {"strategy": "shared"},
        {"strategy": "local"},
        {"bitwise": True},
        {"strategy_options": {"compress": "bf16"}},
        {"strategy_options": {"overlap": "on"}},
        {"strategy_options": {"all_reduce": "ring"}},
        {"device": "cpu", "model": model_of().to(DEVICE)},
        {"device": "cpu", "model": model_of().to(DEVICE), "strategy": "shared"},
        {"device": "cpu", "model": model_of().to(DEVICE), "strategy": "zero"},
        {"device": "gpu"},
    )
    wrong = []
    for case in cases:
        shown = {name: value for name, value in case.items() if name != "model"}
        shown |= {"model": DEVICE} if "model" in case else {}
        try:
            train(**case)
            texts.append(f"{shown}: trained")
        except phalanx.UserError as error:
            texts.append(f"{shown}: {error}")
        except Exception as error:  # noqa: BLE001
            wrong.append(f"{shown}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(["not refused in a line:", *wrong, "refused:", *texts])
    return "\n    ".join(["", *texts])


def shared_folder() -> Any:
    """Return a new folder that all ranks of this machine name alike."""
    from mpi4py import MPI

    class Shared:
        def __enter__(self) -> Path:
            path = tempfile.mkdtemp() if MPI.COMM_WORLD.rank == 0 else None
            return Path(MPI.COMM_WORLD.bcast(path))

        def __exit__(self, *_: object) -> None:
            MPI.COMM_WORLD.barrier()

    return Shared()


DIVIDED: dict[str, dict[str, Any]] = {
    "zero 2": {"strategy": "zero", "strategy_options": {"zero_stage": 2}},
    "zero 3": {"strategy": "zero", "strategy_options": {"zero_stage": 3}},
    "tensor": {
        "strategy": "tensor",
        "strategy_options": {"tensor_plan": {"0": "column", "2": "row"}},
    },
    "pipeline": {"strategy": "pipeline"},
    "server": {"strategy": "server"},
}


def in_layers(device: str, **options: Any) -> dict[str, Tensor]:
    """Return the parameters of a model of three layers, trained by whole steps."""
    torch.manual_seed(2)
    layers = nn.Linear(6, 42), nn.Tanh(), nn.Linear(42, 9), nn.Tanh(), nn.Linear(9, 3)
    model = nn.Sequential(*layers).double()
    optimizer = Adam(model.parameters(), lr=0.05)
    run = phalanx.start(model, optimizer, DATA, device=device, batch_size=16, epochs=2, **options)
    for batch in run:
        run.step(batch, F.cross_entropy)
    found = {name: value.cpu().clone() for name, value in run.state_dict().items()}
    run.close()
    return found


def divided() -> str:
    """Models divided among the ranks train as in one process; on a GPU they may be refused."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.size == 1:
        return "on one rank nothing is"
    truth, texts = in_layers("cpu", comm=MPI.COMM_SELF), []
    for name, options in DIVIDED.items():
        try:
            found = in_layers(DEVICE, **options)
        except phalanx.UserError as error:
            if DEVICE == "cpu":
                raise
            texts.append(f"{name}: {error}")
            continue
        worst = max(float((truth[key] - found[key]).abs().max()) for key in truth)
        assert worst <= CLOSE, (name, worst)
        texts.append(f"{name}: {worst:.2g}")
    return "\n    ".join(["", *texts])


CHECKS: dict[str, Callable[[], str]] = {
    "sgd": lambda: equal(SGD),
    "adam": lambda: equal(Adam, clip_norm=0.1),
    "adamw_fused": lambda: equal(lambda p, lr: AdamW(p, lr=lr, fused=True)),
    "zero": lambda: equal(Adam, strategy="zero"),
    "zero_clips": lambda: equal(Adam, strategy="zero", clip_norm=0.1),
    "micro_batches": lambda: equal(micro_batches=6),
    "loader": lambda: equal(data=loader),
    "dataset": lambda: equal(data=Samples(), loading={"num_workers": 2}),
    "autocast": autocast,
    "bad_gradients": bad_gradients,
    "checkpoints": lambda: checkpoints("auto"),
    "checkpoints_zero": lambda: checkpoints("zero"),
    "thirty_steps": thirty_steps,
    "records": records,
    "default_device": default_device,
    "gather": gather,
    "divided": divided,
    "refused": refused,
}


def dropout() -> str:
    """On a GPU random numbers are others than on the CPU, and the same on any number of ranks."""
    from mpi4py import MPI

    options = {"dropout": 0.3, "micro_batches": 6}
    found = difference(train(**options), train(comm=MPI.COMM_SELF, **options))
    assert found <= CLOSE, found
    return f"{found:.2g}"


CHECKS["dropout"] = dropout


def main() -> None:
    failed = []
    launched = detect(os.environ)
    for name in sys.argv[2:] or CHECKS:
        try:
            print(f"rank {launched and launched.rank}: {name}: {CHECKS[name]()}", flush=True)
        except Exception as error:
            failed.append(name)
            raise AssertionError(name) from error
    from mpi4py import MPI

    print(f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size} is done", flush=True)


if __name__ == "__main__":
    main()
