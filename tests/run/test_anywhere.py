"""Programs that say nothing of strategies end with the parameters of one process under each, or
are told the module and the mend."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import Ranks, long
from tests.run.programs.anywhere import found

OF_STAGES = "cannot be split into stages: make it an nn.Sequential, or give it `pipeline_stages`"
TIED = (
    "head.weight is a parameter of words as well, and sharding would make two copies of it: untie "
    "them"
)
REFUSED = {
    "translator/zero 2": TIED,
    "translator/zero 3": TIED,
    "translator/pipeline": f"Translator {OF_STAGES}",
    "translator/dp=2,pp=2": f"Translator {OF_STAGES}",
    "unet/pipeline": f"UNet {OF_STAGES}",
    "unet/dp=2,pp=2": f"UNet {OF_STAGES}",
    "mnist/server": "Server recreates the optimizer for the shard of each rank: use SGD, Adam or",
    "mnist/tensor": "the model has no plan for tensor parallelism: give its class",
    "gpt/zero 3": "a parameter is used without a call of its module, which would gather it",
    "gan/zero 3": 'strategy="zero" takes one optimizer, but there are 2: use strategy="mpi"',
    "gan/server": 'strategy="server" takes one optimizer, but there are 2: use strategy="mpi"',
}
NEW = (
    *("translator/tensor", "translator/server", "unet/zero 2", "unet/zero 3", "unet/tensor"),
    *("unet/server", "translator/zero 3", "translator/pipeline", "unet/pipeline"),
)
PORTS = (
    *("mnist/zero 2", "mnist/zero 3", "mnist/server", "mnist/tensor", "gpt/zero 3", "gpt/server"),
    *("gan/zero 3", "gan/server"),
)


@cache
def truth_of(program: str) -> dict[str, Tensor]:
    result = found(f"{program}/none")
    assert isinstance(result, dict), result
    return result


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("num_ranks", "cases"),
    [
        (2, NEW),
        long(3, NEW),
        long(4, (*NEW, "translator/zero 2", "translator/dp=2,pp=2", "unet/dp=2,pp=2")),
        long(2, PORTS),
        long(3, PORTS),
    ],
)
def test_parameters_are_those_of_one_process(
    num_ranks: int,
    cases: tuple[str, ...],
    ranks: Ranks,
    programs: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    ranks.mpi(num_ranks, programs("anywhere.py"), str(tmp_path), *cases, timeout_s=400)
    for rank in range(num_ranks):
        results = torch.load(tmp_path / f"{rank}.pt")
        for case in cases:
            result = results[case]
            if case in REFUSED:
                assert isinstance(result, str) and REFUSED[case] in result, (case, result)
                continue
            assert isinstance(result, dict), (case, result)
            for name, value in truth_of(case.split("/")[0]).items():
                assert (result[name] - value).abs().max() < 1e-10, (case, rank, name)
