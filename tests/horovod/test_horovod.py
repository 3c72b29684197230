"""`phalanx.horovod`: Horovod's results, on ranks of MPI and of torchrun; what it refuses."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import phalanx.horovod as hvd
from phalanx.errors import UserError
from phalanx.horovod.ranks import peers_of
from tests.conftest import Ranks, long

Programs = Callable[[str], Path]
mpi = pytest.mark.mpi


def assert_done(output: str, count: int) -> None:
    done = re.findall(r"^rank (\d) of \d is done$", output, re.MULTILINE)
    assert sorted(done) == [str(rank) for rank in range(count)], output


@mpi
@pytest.mark.parametrize("count", [long(1), 2, 3])
def test_collectives(ranks: Ranks, programs: Programs, count: int) -> None:
    assert_done(ranks.mpi(count, programs("collectives.py")), count)


@mpi
@pytest.mark.parametrize("count", [long(1), 2, 3])
def test_optimizer(ranks: Ranks, programs: Programs, count: int) -> None:
    output = ranks.mpi(count, programs("optimizer.py"))
    assert_done(output, count)
    if count > 1:
        assert "zero_grad() was called after backward() and before step()" in output
        assert "more than backward_passes_per_step times" in output


@mpi
def test_a_part_of_the_ranks_trains_beside_a_simulation(ranks: Ranks, programs: Programs) -> None:
    output = ranks.mpi(3, programs("coupled.py"))
    assert "the network has learned the simulation" in output


def test_torchrun_needs_no_mpi(ranks: Ranks, programs: Programs) -> None:
    assert_done(ranks.torchrun(2, programs("collectives.py"), "--no-shutdown"), 2)


def test_cross_ranks_are_those_of_one_local_rank() -> None:
    nodes = [0, 0, 1, 1, 1, 2]
    assert peers_of(nodes, 3) == [1, 3]
    assert peers_of(nodes, 5) == [0, 2, 5]
    assert peers_of(nodes, 4) == [4]


def test_calls_before_init_say_so() -> None:
    for call in (hvd.rank, hvd.size, hvd.local_rank, hvd.barrier):
        with pytest.raises(UserError, match=r"call hvd.init\(\) first"):
            call()


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Adasum", "use op=hvd.Average"),
        ("alltoall_async", "use torch.distributed.all_to_all_single"),
        ("run", "use phalanx launch"),
        ("join", "use as many batches on every rank"),
        ("elastic", "use checkpoints"),
        ("global_process_set", "use groups of torch.distributed"),
        ("alreduce", r"no alreduce \(docs/coming_from.md\)"),
    ],
)
def test_the_rest_of_horovod_names_what_to_use(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=instead):
        getattr(hvd, name)


PARAMETERS = list(torch.nn.Linear(2, 2).named_parameters())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groups": 2}, "leave it out"),
        ({"process_set": object()}, "new_group"),
        ({"op": hvd.Max}, "hvd.Average or hvd.Sum"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "is for hvd.Average"),
        ({"compression": object}, "Compression.none or .fp16"),
        ({"backward_passes_per_step": 0}, "must be at least 1"),
        ({"named_parameters": PARAMETERS[:1]}, "leaves out 1 of the optimizer's 2"),
        ({"named_parameters": PARAMETERS * 2}, "names bias, weight more than once"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], text: str) -> None:
    optimizer = torch.optim.SGD([p for _, p in PARAMETERS], lr=0.1)
    with pytest.raises(UserError, match=text):
        hvd.DistributedOptimizer(optimizer, **options)  # type: ignore[arg-type]


def test_lbfgs_is_refused() -> None:
    with pytest.raises(UserError, match="LBFGS"):
        hvd.DistributedOptimizer(torch.optim.LBFGS([p for _, p in PARAMETERS]))


def test_operation_and_average_are_not_both_given() -> None:
    with pytest.raises(UserError, match="give one of them"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with pytest.raises(UserError, match=r"give \(1,\)"):
        hvd.allgather_async(torch.tensor(1.0))
