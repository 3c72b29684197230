"""Horovod's interface for PyTorch, on MPI through Phalanx: one changed line for a program.

Example::

    import phalanx.horovod as hvd  # was: import horovod.torch as hvd

    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

The results are Horovod's. One rule is stricter: all ranks make the same calls in the same order, as
MPI has it; `name` is taken and not needed. What is not here says what to use instead.
"""

from __future__ import annotations  # noqa: I001  `as` hands names on to type checkers

from typing import Any

from phalanx.horovod.collectives import (
    Average as Average,
    Compression as Compression,
    Handle as Handle,
    Max as Max,
    Min as Min,
    Product as Product,
    Sum as Sum,
    allgather as allgather,
    allgather_async as allgather_async,
    allreduce as allreduce,
    allreduce_ as allreduce_,
    allreduce_async as allreduce_async,
    allreduce_async_ as allreduce_async_,
    barrier as barrier,
    broadcast as broadcast,
    broadcast_ as broadcast_,
    broadcast_async as broadcast_async,
    broadcast_async_ as broadcast_async_,
    grouped_allgather as grouped_allgather,
    grouped_allgather_async as grouped_allgather_async,
    grouped_allreduce as grouped_allreduce,
    grouped_allreduce_ as grouped_allreduce_,
    grouped_allreduce_async as grouped_allreduce_async,
    grouped_allreduce_async_ as grouped_allreduce_async_,
    poll as poll,
    synchronize as synchronize,
)
from phalanx.horovod.optimizer import DistributedOptimizer as DistributedOptimizer
from phalanx.horovod.ranks import (
    cross_rank as cross_rank,
    cross_size as cross_size,
    init as init,
    is_homogeneous as is_homogeneous,
    is_initialized as is_initialized,
    local_rank as local_rank,
    local_size as local_size,
    rank as rank,
    shutdown as shutdown,
    size as size,
)
from phalanx.horovod.state import (
    allgather_object as allgather_object,
    broadcast_object as broadcast_object,
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)

_BUILT = {"mpi": True, **dict.fromkeys(("gloo", "nccl", "ddl", "ccl", "cuda", "rocm"), False)}
"""Answers of `hvd.mpi_built()` and the like."""

_INSTEAD = {
    "Adasum": "op=hvd.Average, with the learning rate of that",
    "ProcessSet": 'groups of torch.distributed: init_process_group("mpi") and new_group',
    "SyncBatchNorm": "torch.nn.SyncBatchNorm with DistributedDataParallel, on GPUs",
    "alltoall": "torch.distributed.all_to_all_single on backend mpi",
    "elastic": "checkpoints: a run of phalanx.start resumes on another number of ranks",
    "join": "as many batches on every rank (DistributedSampler), or DistributedDataParallel.join",
    "reducescatter": "torch.distributed.reduce_scatter_tensor on backend mpi",
    "run": "phalanx launch -n N program.py, or mpiexec -n N python program.py",
    "sparse_allreduce_async": "torch.distributed.all_reduce on backend mpi",
    "start_timeline": "torch.profiler, or phalanx train --trace",
}
_SAME_AS = {
    "add_process_set": "ProcessSet",
    "remove_process_set": "ProcessSet",
    "global_process_set": "ProcessSet",
    "stop_timeline": "start_timeline",
    **{f"{name}_async": name for name in ("alltoall", "reducescatter")},
}


def __getattr__(name: str) -> Any:
    """Answer `mpi_built` and its like; name what to use instead of the rest of Horovod."""
    library, _, question = name.rpartition("_")
    if question in ("built", "enabled") and library in _BUILT:
        return lambda: _BUILT[library]
    if name == "mpi_threads_supported":
        return lambda: True
    instead = _INSTEAD.get(_SAME_AS.get(name, name))
    text = f"phalanx.horovod has no {name}"
    raise AttributeError(f"{text}; use {instead}" if instead else f"{text} (docs/coming_from.md)")
