"""A bitwise run ends with a certificate, or says why it has none."""

import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import phalanx
from phalanx.checkpoints.checkpoint import state_sha256
from phalanx.errors import UserError
from phalanx.run.certificate import MAX_DIGESTS, digest_of, group_tensors, odd_ones, torch_build
from phalanx.run.samples import samples_of, seeded_samples
from phalanx.torch_backend.threads import naming_operations
from tests.conftest import Ranks, long
from tests.run.programs.certificate import flip, found, train

pytestmark = pytest.mark.usefixtures("restored_settings")

LINE = (
    r"bitwise: SHA-256 [0-9a-f]{64} after 4 steps of 8 micro-batches \(1 thread, torch \S+, \w+\)"
)


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
    train(steps=2, checkpoint_dir=tmp_path / "checkpoints")
    ranks.mpi(num_ranks, programs("certificate.py"), str(tmp_path), str(tmp_path / "checkpoints"))
    here = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    right = truth()["right"]
    assert here[0]["right"] == right
    assert here[1]["right"] == "", "rank 0 alone prints"
    assert here[0]["resumed"] == truth()["resumed"] == right
    assert "micro_batches 8 there, 4 here" in here[1]["resumed, cut otherwise"]
    assert here[0]["counted twice"] != right
    assert re.fullmatch(LINE, here[0]["counted twice"].strip())
    assert here[0]["order of ranks"] != truth()["order of ranks"], "the mutation is none"
    assert here[0]["order of ranks"] != right
    for rank in range(num_ranks):
        assert "ended with bits that differ from the other ranks" in here[rank]["updates kept"]
        error = here[rank]["flipped on one rank"]
        who = "rank 1" if num_ranks > 2 else r"rank \d"
        assert re.match(
            rf"bitwise: {who} ended with bits that differ from the other ranks, in 3.weight", error
        )


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
    tensors = dict(model.state_dict())
    groups = group_tensors(list(tensors), tensors)
    assert len(groups) <= MAX_DIGESTS
    assert sum(len(group.tensors) for group in groups) == 200
    assert groups[0].name == "0.weight … 1.bias"
    assert digest_of(torch.tensor([True])) == 1
    assert digest_of(torch.empty(0)) == 0


class Drawing(Dataset[Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return torch.tensor([float(index), *drawn])


@pytest.mark.parametrize("loading", [{}, long({"num_workers": 2})])
def test_random_numbers_belong_to_the_sample(loading: dict[str, int]) -> None:
    """Whichever batch it is in, and whoever reads it."""
    samples = seeded_samples(samples_of(Drawing(), loading), 7)
    batches = iter(samples.batches([torch.tensor([4, 1]), torch.tensor([0])]))
    first, before = next(batches), torch.get_rng_state()
    rows = torch.cat([first, *batches])
    assert torch.equal(torch.get_rng_state(), before), "the program's own are left as they were"
    again = torch.cat(list(samples.batches([torch.tensor([0, 4, 1])])))
    assert torch.equal(rows[[2, 0, 1]], again)
    assert len(rows.unique()) == 12, "no two samples, and no two generators, draw the same"
    (other,) = seeded_samples(samples_of(Drawing(), loading), 8).batches([torch.tensor([4, 1, 0])])
    assert not torch.equal(rows, other)


def refused(**options: object) -> str:
    """Return the error of a run, of one rank."""
    model = nn.Sequential(nn.Linear(3, 2))
    layer = options.pop("layer", None)
    if isinstance(layer, nn.Module):
        model.append(layer)
    data = (torch.randn(8, 3), torch.randint(2, (8,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError) as error:
        phalanx.start(model, optimizer, data, batch_size=4, bitwise=True, **options)  # type: ignore[arg-type]
    return str(error.value)


def test_what_a_bitwise_run_refuses() -> None:
    assert "SyncBatchNorm, which sums statistics in an order that" in refused(
        layer=nn.SyncBatchNorm(2), micro_batches=1
    )
    assert refused(micro_batches=5).endswith("with 1 rank and batch_size=4 it must be 1 to 4")
    for name, value in (("compress", "fp16"), ("bucket_mb", 2.0)):
        told = refused(strategy_options={name: value})
        assert told.startswith(f"{name}=") and "has a fixed order of sums" in told
    assert 'bitwise=True and strategy="local" exclude each other' in refused(strategy="local")


def test_an_operation_whose_results_vary_is_named() -> None:
    torch.use_deterministic_algorithms(True)
    words = r"^bitwise: the results of put_ .*vary from run to run"
    with pytest.raises(UserError, match=words), naming_operations():
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    with pytest.raises(RuntimeError, match="else"), naming_operations():
        raise RuntimeError("something else")


def test_who_reads_memory_that_nobody_has_initialized_meets_nan() -> None:
    """PyTorch fills such memory in the first step, and leaves it alone in the others, which then
    are as fast as those of an ordinary run."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = phalanx.start(model, optimizer, torch.randn(8, 4), batch_size=4, bitwise=True)
    for batch in run:
        is_first = batch.step == 0
        assert not is_first or torch.empty(1000).isnan().all()
        assert torch.utils.deterministic.fill_uninitialized_memory == is_first  # type: ignore[attr-defined]
        run.backward(run.model(batch.data).mean())


@pytest.mark.mpi
@pytest.mark.long
def test_processors_and_operations_that_differ_are_named(
    new_ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    shown = new_ranks.mpi(2, programs("processors.py"), may_fail=True)
    kinds = r"bitwise: rank 1 \(DEFAULT, .*\) and rank 0 \(\w+, .*\) have different processors"
    assert re.search(kinds, shown)
    line = r"phalanx: bitwise: the results of put_ .*vary from run to run.*processors.py:\d+\)"
    assert re.search(line, shown)
    assert "Traceback" not in shown
