"""Every strategy on every number of ranks gives the parameters of one process.

Fifty steps of Adam with a global batch that three and four ranks cannot share evenly, and a last
batch with fewer samples than four ranks.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import Ranks

pytestmark = pytest.mark.mpi

LAYOUTS = [(strategy, count) for strategy in ("mpi", "shared", "gloo") for count in (1, 2, 3, 4)]
Truth = dict[str, dict[str, Tensor]]


def alone(dtype: str, folder: Path, *optimizer: str) -> Truth:
    path = Path(__file__).parent / "programs" / "truth.py"
    spec = importlib.util.spec_from_file_location("truth", path)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    threads = torch.get_num_threads()
    program.main("sequential", dtype, folder, *optimizer)
    torch.set_num_threads(threads)
    models = ("mlp",) if optimizer else ("mlp", "cnn", "rnn")
    return {model: load_file(folder / f"{model}-0.safetensors") for model in models}


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return alone("float64", tmp_path_factory.mktemp("float64"))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return alone("float32", tmp_path_factory.mktemp("float32"))


def together(
    ranks: Ranks, program: Path, strategy: str, count: int, dtype: str, to: Path, *optimizer: str
) -> None:
    words = (strategy, dtype, str(to), *optimizer)
    if strategy in ("mpi", "shared"):
        ranks.mpi(count, program, *words)
    else:
        ranks.local(count, program, *words, environment={"PHALANX_RENDEZVOUS": str(to / "meet")})


@pytest.mark.parametrize(("strategy", "count"), LAYOUTS)
def test_parameters_equal_the_sequential_ones(
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
    exact: Truth,
    strategy: str,
    count: int,
) -> None:
    together(ranks, programs("truth.py"), strategy, count, "float64", tmp_path)
    assert_equal(tmp_path, exact, count)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_fused_step_is_that_of_every_optimizer(
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    optimizer: str,
    count: int,
) -> None:
    truth = alone("float64", tmp_path_factory.mktemp("alone"), optimizer)
    found = tmp_path_factory.mktemp("together")
    together(ranks, programs("truth.py"), "shared", count, "float64", found, optimizer)
    assert_equal(found, truth, count)


def assert_equal(folder: Path, truths: Truth, count: int) -> None:
    """Parameters on every rank, losses and counts are those of one process."""
    for model, truth in truths.items():
        for rank in range(count):
            found = load_file(folder / f"{model}-{rank}.safetensors")
            for name in truth.keys() - {"totals", "losses"}:
                assert torch.allclose(found[name], truth[name], rtol=0, atol=1e-10), (
                    f"{model} {name} on rank {rank}"
                )
        found = load_file(folder / f"{model}-0.safetensors")
        assert torch.allclose(found["losses"], truth["losses"], rtol=1e-10, atol=0)
        assert_counts(found["totals"], truth["totals"])


def assert_counts(found: Tensor, truth: Tensor) -> None:
    """Samples, hits and losses over all ranks are those of one process: none lost, none twice."""
    assert torch.allclose(found.sum(0)[2:], truth.sum(0)[2:], rtol=1e-10, atol=0)


@pytest.mark.parametrize("strategy", ["mpi", "shared", "gloo"])
@pytest.mark.parametrize("count", [2, 3])
def test_in_float32_the_loss_curve_is_the_sequential_one(
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
    single: Truth,
    strategy: str,
    count: int,
) -> None:
    together(ranks, programs("truth.py"), strategy, count, "float32", tmp_path)
    for model, truth in single.items():
        found = load_file(tmp_path / f"{model}-0.safetensors")
        assert torch.allclose(found["losses"], truth["losses"], rtol=1e-3), model
