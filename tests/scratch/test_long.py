"""What takes minutes: the accuracy that every scheme reaches, and many ranks on few cores."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.data.datasets.catalog import resolve
from phalanx.errors import UserError
from phalanx.records.events import FinishedEvent, SummaryEvent
from phalanx.records.files import read_events
from phalanx.scratch.config import ScratchConfig, complete
from phalanx.scratch.job import run_scratch

pytestmark = [pytest.mark.mpi, pytest.mark.long]

SCHEMES = {"alone": None, "library": 2, "ring": 3, "server": 3, "tensor": 2}
MANY, WITHIN_S = 128, 60
SHARED_MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"


def run(config: ScratchConfig, folder: Path) -> SummaryEvent:
    """The last epoch's summary."""
    run_scratch(
        complete(config), folder, study="test", command=["test"], console=Console(quiet=True)
    )
    summaries = [e for e in read_events(folder / "rank-0.jsonl") if isinstance(e, SummaryEvent)]
    return summaries[-1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_learns_to_read_digits(tmp_path: Path, scheme: str) -> None:
    """The defaults on MNIST; the embedded digits take twice the epochs."""
    config = ScratchConfig(scheme=scheme, ranks=SCHEMES[scheme])  # type: ignore[arg-type]
    digits = replace(config, dataset="digits", epochs=10)
    assert run(digits, tmp_path / "digits").validation_accuracy >= 0.97
    mnist = replace(config, dataset="mnist", data_root=root_of_mnist())
    try:
        resolve("mnist", mnist.data_root)
    except UserError:
        return  # MNIST is not on this machine
    assert run(mnist, tmp_path / "mnist").validation_accuracy >= 0.97


def root_of_mnist() -> Path | None:
    is_beside = SHARED_MNIST.is_dir() and "PHALANX_DATA" not in os.environ
    return SHARED_MNIST if is_beside else None


@pytest.mark.parametrize("scheme", ["library", "ring", "server"])
def test_a_hundred_ranks_start_train_and_stop(tmp_path: Path, scheme: str) -> None:
    """Within a minute on two cores, if nobody else is on them."""
    began = time.monotonic()
    run(
        ScratchConfig(
            scheme=scheme,  # type: ignore[arg-type]
            ranks=MANY,
            dataset="digits",
            epochs=1,
            batch_size=512,
            train_samples=2048,
            validation_samples=1000,
        ),
        tmp_path / "run",
    )
    took = time.monotonic() - began
    ends = [list(read_events(tmp_path / "run" / f"rank-{rank}.jsonl"))[-1] for rank in range(MANY)]
    assert all(
        isinstance(end, FinishedEvent) and end.peak_memory_bytes < 150 * 2**20 for end in ends
    )
    assert len({end.parameters_sha256 for end in ends if isinstance(end, FinishedEvent)}) == 1
    assert took < WITHIN_S, f"{took:.0f} s"
