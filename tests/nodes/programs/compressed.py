"""Each rank: compressed sums of nodes × ranks, their error, bits and bytes; then one that fails."""

import hashlib

import torch
from mpi4py.MPI import COMM_WORLD
from torch import Tensor, nn

from phalanx.comm.errors import PeerFailedError
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import BucketedGradReducer
from phalanx.gradients.compression.make import make_compressor

RANK, SIZE = COMM_WORLD.Get_rank(), COMM_WORLD.Get_size()
SHAPES = ((300, 1001), (1,), (7, 11, 13))
COUNT = 300 * 1001 + 1 + 7 * 11 * 13
LARGEST_ERRORS = {"fp16": 2**-10, "bf16": 2**-7, "int8": 2**-5}
"""Of the sum, by its norm: two roundings."""
FRACTION = 0.01  # that topk sends


def gradients_of(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def check_sums(world: World, name: str, *, overlaps: bool) -> None:
    traffic = world.group.traffic = TrafficCounter()
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = BucketedGradReducer(world, parameters, make_compressor(name), overlaps=overlaps)
    before = traffic.snapshot()
    for step in range(3):
        reducer.begin()
        sum(
            (p * g).sum() for p, g in zip(parameters, gradients_of(RANK, step), strict=True)
        ).backward()
        reducer.flush()
        found = flat([p.grad for p in parameters])
        for parameter in parameters:
            parameter.grad = None
        terms = torch.stack([flat(gradients_of(rank, step)) for rank in range(SIZE)])
        if name == "topk":
            assert 0 < int((found != 0).sum()) <= 2 * SIZE * (FRACTION * COUNT + 2)
        else:
            error = float((found - terms.sum(0)).norm() / terms.sum(0).norm())
            assert error < (step + 1) * LARGEST_ERRORS[name], (name, error)
        digests = COMM_WORLD.allgather(hashlib.sha256(found.numpy().tobytes()).hexdigest())
        assert len(set(digests)) == 1, name
    counted, expected = traffic - before, reducer.expected_traffic()
    assert counted.sent_bytes == 3 * expected.sent_bytes, (name, counted, expected)
    whole = 4 * COUNT * 2 / 2  # what lanes send of the uncompressed sum, a node
    sent = COMM_WORLD.allreduce(counted.network_sent_bytes) / 3 / 2
    if RANK == 0:
        print(f"{name}: {sent / whole:.2f} of the uncompressed bytes of a node", flush=True)
    assert sent < 0.6 * whole, (name, sent, whole)
    state = reducer.rank_local_state()
    assert (state is None) == (name in ("fp16", "bf16"))
    if state is not None:
        assert state.name.endswith("of 2 lanes")
        assert reducer.load_rank_local_state(state)
    reducer.close()
    world.group.traffic = None


def check_failure(world: World) -> None:
    """A rank fails in its block: all others hear of it in their sums, at once or by a neighbour."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    reducer = BucketedGradReducer(world, parameters, make_compressor("int8"), overlaps=False)
    COMM_WORLD.Barrier()  # else slower ranks hear of it while they make theirs
    reducer.begin()
    sum(p.sum() for p in parameters).backward()
    if RANK == 1:
        reducer.fail("no good")
        return
    try:
        reducer.flush()
    except PeerFailedError as error:
        assert "no good" in str(error), error
        reducer.fail(str(error))
    else:
        raise AssertionError("it came")


world = World.create(timeout_s=20)
assert world.group.topology.has_lanes
for compressor in ("fp16", "bf16", "int8", "topk"):
    check_sums(world, compressor, overlaps=compressor == "int8")
check_failure(world)
print(f"\nrank {RANK} of {SIZE} is done", flush=True)
COMM_WORLD.Barrier()
