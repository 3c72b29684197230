"""Every strategy on every number of ranks gives the parameters of one process.

Five steps, and fifty in the long tests, with a global batch that three and four ranks cannot
share evenly, and a last batch with fewer samples than four ranks. One job of ranks runs all cases,
one after the other.
"""

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import Ranks, long

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]

Options = dict[str, Any]
Truth = Callable[[Options, int], dict[str, Tensor]]

OPTIMIZERS: dict[str, Options] = {
    "adam": {},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
    "sgd": {"optimizer": "sgd", "weight_decay": 0.01},
    "plain": {"optimizer": "sgd", "momentum": 0.0, "lr": 0.05},
}
MODELS = ("mlp", "cnn", "rnn")
FEW_STEPS, STEPS = 5, 50
COUNTS = pytest.mark.parametrize(
    ("count", "steps"), [(3, FEW_STEPS), *(long(count, STEPS) for count in (1, 2, 3, 4))]
)
METHODS = ("library", "naive", "direct", "ring", "tree", "halving")
COUNTS_BYTES = 100
"""More or less of the optimizer's counts of steps, one for each parameter."""
OF_THE_TRUTH = ("model", "dtype", "optimizer", "weight_decay", "momentum", "lr")
"""Options that decide the parameters; the others decide how they are come by."""


def data_parallel(strategy: str, dtype: str) -> dict[str, Options]:
    return {
        f"{strategy}-{model}-{dtype}": {"strategy": strategy, "model": model, "dtype": dtype}
        for model in MODELS
    }


def cases_over_mpi(count: int) -> dict[str, Options]:
    """Names, and what differs from the defaults and from float64."""
    exact: Options = {"dtype": "float64"}
    cases = {**data_parallel("mpi", "float64"), **data_parallel("shared", "float64")}
    if count in (2, 3):
        cases |= {**data_parallel("mpi", "float32"), **data_parallel("shared", "float32")}
    for name in ("adamw", "sgd"):
        cases[f"shared-{name}"] = {"strategy": "shared", **OPTIMIZERS[name], **exact}
    for method in METHODS:
        cases[f"mpi-{method}"] = {
            "strategy": "mpi", "all_reduce": method, "accumulate": 3, "count": True, **exact
        }  # fmt: skip
    for overlap in ("on", "off"):
        cases[f"mpi-link-{overlap}"] = {
            "strategy": "mpi", "link": "50us", "overlap": overlap,
            "bucket_mb": {"on": 0.2}.get(overlap), "accumulate": 3, "count": True, **exact,
        }  # fmt: skip
    for strategy in ("mpi", "shared"):
        cases[f"{strategy}-pieces"] = {
            "strategy": strategy, "accumulate": 3, "count": True, **exact
        }  # fmt: skip
    for outer in ({}, {"outer_optimizer": "nesterov", "outer_lr": 1.0, "outer_momentum": 0.0}):
        cases[f"local-{len(outer)}"] = {
            "strategy": "local", "local_steps": 1, "count": True,
            **OPTIMIZERS["plain"], **outer, **exact,
        }  # fmt: skip
    return cases | cases_with_servers(count)


def cases_with_servers(count: int) -> dict[str, Options]:
    """One worker that nobody overtakes trains as one process does, in every mode."""
    alone: dict[str, Options] = {
        f"server-{mode}": {
            "strategy": "server", "servers": count - 1, "server_mode": mode, "dtype": "float64",
            "count": mode == "asynchronous", "accumulate": 1 if mode == "asynchronous" else 3,
        }
        for mode in ("asynchronous", "bounded")
        if count in (2, 3)
    }  # fmt: skip
    return alone | {
        f"server-{servers}-{name}": {
            "strategy": "server", "servers": servers, "accumulate": servers, "dtype": "float64",
            "count": name == "adam", **OPTIMIZERS[name],
        }
        for servers in (1, 2)
        for name in ("adam", "sgd")
        if servers < count
    }  # fmt: skip


def cases_of_gloo(count: int) -> dict[str, Options]:
    cases = data_parallel("gloo", "float64")
    if count in (2, 3):
        cases |= data_parallel("gloo", "float32")
    cases["gloo-pieces"] = {"strategy": "gloo", "accumulate": 3, "dtype": "float64"}
    return cases


def in_this_process(folder: Path, cases: dict[str, Options], steps: int) -> None:
    path = Path(__file__).parent / "programs" / "truth.py"
    spec = importlib.util.spec_from_file_location("truth", path)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PHALANX_COUNT", "0")
        program.main(folder, cases, steps)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """What one process gives for a case, computed once for all that must equal it."""
    folder = tmp_path_factory.mktemp("truth")

    @cache
    def alone(text: str, steps: int) -> dict[str, Tensor]:
        number = len(list(folder.glob("*.safetensors")))
        in_this_process(folder, {f"case{number}": json.loads(text)}, steps)
        return load_file(folder / f"case{number}-0.safetensors")

    def of(options: Options, steps: int) -> dict[str, Tensor]:
        words = {name: options[name] for name in OF_THE_TRUTH if name in options}
        return alone(json.dumps(words), steps)

    return of


@COUNTS
def test_parameters_over_mpi_equal_the_sequential_ones(
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
    truth: Truth,
    count: int,
    steps: int,
) -> None:
    cases = cases_over_mpi(count)
    words = (str(tmp_path), json.dumps(cases), str(steps))
    ranks.mpi(count, programs("truth.py"), *words, timeout_s=500)
    assert_equal(tmp_path, cases, truth, count, steps)


@COUNTS
def test_parameters_of_gloo_equal_the_sequential_ones(
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
    truth: Truth,
    count: int,
    steps: int,
) -> None:
    cases = cases_of_gloo(count)
    words, meeting = (str(tmp_path), json.dumps(cases), str(steps)), str(tmp_path / "meet")
    environment = {"PHALANX_RENDEZVOUS": meeting}
    ranks.local(count, programs("truth.py"), *words, environment=environment, timeout_s=500)
    assert_equal(tmp_path, cases, truth, count, steps)


@pytest.mark.long
def test_servers_of_many_workers_give_the_sequential_parameters(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path, truth: Truth
) -> None:
    """Most of them have nothing of the last batch."""
    cases = cases_with_servers(8)
    ranks.mpi(8, programs("truth.py"), str(tmp_path), json.dumps(cases), timeout_s=500)
    assert_equal(tmp_path, cases, truth, 8, STEPS)


def test_checkpoints_of_one_strategy_go_on_under_another(
    ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    """Three epochs: one process, two servers, ranks; or one process, local steps, ranks."""
    together = tmp_path / "together"
    together.mkdir()
    alone, shared = {}, {}
    for optimizer in ("adam", "plain"):
        options = {"dtype": "float64", "lr_schedule": "constant", **OPTIMIZERS[optimizer]}
        other = {"strategy": "local", "local_steps": 1}
        if optimizer == "adam":
            other = {"strategy": "server", "servers": 2}
        for epoch, split in enumerate(({}, other, {"strategy": "mpi"})):
            name = f"{optimizer}-{epoch}"
            folder = {"checkpoint_dir": str(tmp_path / optimizer)}
            before = [{}, {"resume": str(tmp_path / optimizer / f"epoch-{epoch:04d}")}][epoch > 0]
            options["epochs"] = epoch + 1
            alone[name] = {**options, **folder, **before}
            if epoch > 0:
                folder = {"checkpoint_dir": str(together / optimizer)}
                start = (tmp_path if epoch == 1 else together) / optimizer / f"epoch-{epoch:04d}"
                shared[name] = {**options, **split, **folder, "resume": str(start)}
    in_this_process(tmp_path, alone, FEW_STEPS)
    words = (str(together), json.dumps(shared), str(FEW_STEPS))
    ranks.mpi(3, programs("truth.py"), *words, timeout_s=300)
    for optimizer in ("adam", "plain"):
        for checkpoint in ("epoch-0002", "epoch-0003"):
            for file in ("model", "optimizer"):
                place = Path(optimizer) / checkpoint / f"{file}.safetensors"
                expected, found = load_file(tmp_path / place), load_file(together / place)
                assert found.keys() == expected.keys(), place
                for key, tensor in expected.items():
                    assert found[key].dtype == tensor.dtype, (place, key)
                    assert torch.allclose(found[key], tensor, rtol=0, atol=1e-10), (place, key)


def assert_equal(
    folder: Path, cases: dict[str, Options], truth: Truth, count: int, steps: int
) -> None:
    for name, options in cases.items():
        expected = truth(options, steps)
        if options.get("dtype") == "float64":
            assert_exact(folder, name, expected, count)
        found = load_file(folder / f"{name}-0.safetensors")
        precision = 1e-10 if options.get("dtype") == "float64" else 1e-3
        losses = sum_over_ranks(folder, name, "losses", count)
        assert torch.allclose(losses, expected["losses"], rtol=precision, atol=0), name
        kept, in_theory = found["kept"].tolist()
        assert 0 <= kept - in_theory <= COUNTS_BYTES, (name, kept, in_theory)
        if options.get("count"):
            for rank in range(count):
                counted = load_file(folder / f"{name}-{rank}.safetensors")
                assert counted["moved"].tolist() == counted["expected"].tolist(), (name, rank)


def assert_exact(folder: Path, name: str, truth: dict[str, Tensor], count: int) -> None:
    """Parameters on every rank, and counts over all ranks, are those of one process."""
    for rank in range(count):
        found = load_file(folder / f"{name}-{rank}.safetensors")
        beside = {"totals", "losses", "moved", "expected", "beside", "staleness", "kept"}
        for key in truth.keys() - beside:
            assert torch.allclose(found[key], truth[key], rtol=0, atol=1e-10), (
                f"{name}: {key} on rank {rank}"
            )
    totals = sum_over_ranks(folder, name, "totals", count)
    # Samples, losses and hits: none lost, none twice.
    assert torch.allclose(totals, truth["totals"], rtol=1e-10)


def sum_over_ranks(folder: Path, name: str, key: str, count: int) -> Tensor:
    ranks = [load_file(folder / f"{name}-{rank}.safetensors")[key] for rank in range(count)]
    return torch.stack(ranks).sum(0)
