"""A bitwise run ends with a certificate, or says why it has none."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from phalanx.checkpoints.checkpoint import state_sha256
from phalanx.run.certificate import odd_ones, torch_build
from phalanx.run.digests import MAX_DIGESTS, digest_of, group_tensors
from tests.conftest import Ranks, long
from tests.run.programs.certificate import flip, found

LINE = (
    r"bitwise: SHA-256 [0-9a-f]{64} after 4 steps of 8 micro-batches \(1 thread, torch \S+, \w+\)"
)


@pytest.fixture(autouse=True, scope="module")
def settings() -> Iterator[None]:
    """Undo what a bitwise run sets for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@cache
def truth() -> dict[str, str]:
    """Return what one process finds."""
    return found()


def test_one_process_prints_its_certificate() -> None:
    assert re.fullmatch(LINE, truth()["right"].strip())


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [2, long(3)])
def test_what_is_wrong_has_another_certificate_or_none(
    num_ranks: int, ranks: Ranks, programs: Callable[[str], Path], tmp_path: Path
) -> None:
    """Mutations: each must be seen."""
    ranks.mpi(num_ranks, programs("certificate.py"), str(tmp_path))
    here = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    right = truth()["right"]
    assert here[0]["right"] == right
    assert here[1]["right"] == "", "rank 0 alone prints"
    assert here[0]["counted twice"] != right
    assert re.fullmatch(LINE, here[0]["counted twice"].strip())
    assert here[0]["order of ranks"] != truth()["order of ranks"], "the mutation is none"
    assert here[0]["order of ranks"] != right
    for rank in range(num_ranks):
        error = here[rank]["flipped on one rank"]
        who = "rank 1" if num_ranks > 2 else r"rank \d"
        assert re.match(rf"bitwise: {who} ended with other bits than the rest, in 3.weight", error)


def test_ranks_that_differ_from_the_most() -> None:
    assert odd_ones(["a"]) == []
    assert odd_ones(["a", "b"]) == [1]
    assert odd_ones(["b", "a", "a"]) == [0]


def test_every_bit_counts() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    hashes, digests = {state_sha256(model, optimizer)}, {digest_of(model[0].bias)}
    flip(model[0].bias)
    hashes.add(state_sha256(model, optimizer))
    digests.add(digest_of(model[0].bias))
    flip(optimizer.state[model[0].weight]["exp_avg"])
    hashes.add(state_sha256(model, optimizer))
    flip(model[1].running_mean)
    hashes.add(state_sha256(model, optimizer))
    assert len(hashes) == 4
    assert len(digests) == 2
    assert re.fullmatch("[0-9a-f]{16}", torch_build())


def test_tensors_of_a_large_model_share_digests() -> None:
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(100)])
    groups = group_tensors(model)
    assert len(groups) <= MAX_DIGESTS
    assert sum(len(group.tensors) for group in groups) == 200
    assert groups[0].name == "0.weight … 1.bias"
    assert digest_of(torch.tensor([True])) == 1
    assert digest_of(torch.empty(0)) == 0
