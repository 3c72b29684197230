"""The process group that PyTorch gets for backend "mpi"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import AllreduceOptions
from torch.autograd import profiler as torch_profiler
from torch.distributed import Work

from phalanx.comm.group import Group
from phalanx.comm.traffic import TrafficCounter
from phalanx.torch_backend.call_context import CallContext
from phalanx.torch_backend.ddp import DDPBuckets
from phalanx.torch_backend.errors import ENGINE_ERRORS, to_torch_error
from phalanx.torch_backend.gpu_staging import PART_BYTES
from phalanx.torch_backend.monitored_barrier import monitored_barrier
from phalanx.torch_backend.profiling import is_profiling, make_calls_in_event
from phalanx.torch_backend.reduce_ops import get_reduction
from phalanx.torch_backend.session import Session
from phalanx.torch_backend.sparse import check_sparse, sum_sparse
from phalanx.torch_backend.tensors import PLAIN_TENSORS, buffer_of, is_plain
from phalanx.torch_backend.torch_call import TorchCall, make_options
from phalanx.torch_backend.work import CoalescedWork, CompletedWork

if TYPE_CHECKING:

    class ProcessGroup:
        """Stub for type checks: PyTorch declares overloads, of which the methods take any."""

        def __init__(self, rank: int, size: int) -> None: ...
else:
    from torch.distributed import ProcessGroup

Tensors = list[Tensor] | Tensor
Lists = list[list[Tensor]] | list[Tensor]


class ProcessGroupMPI(ProcessGroup):
    """One rank's part in a group, on a `comm.Group`; PyTorch calls the methods by their names.

    Each method is a translation: a `TorchCall` checks the arguments, stages the tensors, and runs
    or queues a call of the engine. `opts` and `more` are PyTorch's overloads, see `make_options`.
    Behind the collectives: what PyTorch asks of any backend.
    """

    def __init__(
        self, engine: Group, session: Session, store: dist.Store | None, name: str
    ) -> None:
        super().__init__(engine.rank, engine.size)
        self._engine, self.session, self._store = engine, session, store
        self._desc = "undefined"
        self._context = CallContext(engine, session, name)
        self._queue, self._completed = self._context.queue, self._context.completed
        self.buckets = DDPBuckets(engine.shm, session.world.settings)

    # -- reductions --------------------------------------------------------------------------------

    def allreduce(
        self, tensors: Tensors, opts: Any = None, timeout: Any = None, *, op: Any = None
    ) -> Work:
        if type(opts) is not AllreduceOptions:
            opts = make_options(AllreduceOptions, opts, timeout, op=op)
        is_async = opts.asyncOp
        one = tensors[0] if type(tensors) is list and len(tensors) == 1 else None
        is_sparse = one is not None and one.is_sparse
        is_bucket = (
            one is not None and is_async and not is_sparse and self.buckets.share_if_bucket(one)
        )
        is_inline = is_bucket and self.buckets.runs_inline
        if (
            one is not None
            and (is_inline or not is_async)
            and not torch_profiler._is_profiler_enabled
            and self._all_reduce_inline(one, opts)
        ):
            return CompletedWork([one]) if is_bucket else self._completed
        call = TorchCall(self._context, "all_reduce", AllreduceOptions, opts)
        if one is not None and is_sparse:
            check_sparse(one, call.reduction(one), call.label)
            total = partial(sum_sparse, one, self._engine, call.timeout_s)
            return call.submit(total, [one], [one])
        both = [call.tensor(tensors)]
        work = call.run("all_reduce", both, both, is_inline=is_inline)
        return CompletedWork(both) if is_bucket and work is self._completed else work

    def _all_reduce_inline(self, tensor: Tensor, opts: Any) -> bool:
        """Run the common case in few Python steps: a plain tensor, an empty queue. False: another
        case, nothing was done."""
        context, timeout = self._context, opts.timeout
        if context.closed_reason is not None:
            return False
        engine, queue = context.engine, context.queue
        try:
            op, is_average, scales = get_reduction(tensor.dtype, hash(opts.reduceOp))
        except TypeError:
            return False
        is_in_parts = context.stages_in_parts and tensor.nbytes > PART_BYTES
        if scales or is_in_parts or not queue.try_begin():
            return False
        try:
            divisor = engine.size if is_average else 1.0
            timeout_s = timeout.total_seconds() if timeout.days >= 0 and timeout else None
            if engine.all_reduce_tensor(tensor, PLAIN_TENSORS, op, divisor, timeout_s):
                return True
            if not is_plain(tensor):
                return False
            engine.all_reduce(buffer_of(tensor), op, divisor=divisor, timeout_s=timeout_s)
        except ENGINE_ERRORS as error:
            raise to_torch_error(error) from None
        finally:
            queue.end()
        return True

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        name, kind = "all_reduce_coalesced", AllreduceOptions
        calls = [([tensor],) for tensor in tensors]
        return self._run_all(name, kind, self.allreduce, calls, opts, tensors, tensors)

    def reduce(
        self, tensors: Tensors, opts: Any = None, op: Any = None, *timeout: Any, root: Any = None
    ) -> Work:
        opts = make_options(c10d.ReduceOptions, opts, *timeout, op=op, root=root)
        call = TorchCall(self._context, "reduce", c10d.ReduceOptions, opts)
        both = [call.tensor(tensors)]
        return call.run("reduce", both, both, root=call.root())

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, *opts: Any, **more: Any) -> Work:
        kind = c10d.ReduceScatterOptions
        call = TorchCall(self._context, "reduce_scatter", kind, *opts, **more)
        output, terms = call.tensor(outputs), call.tensor_per_rank(inputs)
        return call.run("reduce_scatter", terms, [output])

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        call = TorchCall(self._context, "reduce_scatter_single", c10d.ReduceScatterOptions, opts)
        call.check_full("input", call.tensor(input), "output", call.tensor(output))
        return call.run("reduce_scatter", [input], [output])

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        name, kind = "reduce_scatter_coalesced", c10d.ReduceScatterOptions
        calls = zip(outputs, inputs, strict=True)
        return self._run_all(name, kind, self.reduce_scatter_single, calls, opts, inputs, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- movement of data --------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, *opts: Any, **more: Any) -> Work:
        call = TorchCall(self._context, "broadcast", c10d.BroadcastOptions, *opts, **more)
        both = [call.tensor(tensors)]
        return call.run("broadcast", both, both, root=call.root())

    def allgather(self, outputs: Lists, inputs: Tensors, *opts: Any, **more: Any) -> Work:
        call = TorchCall(self._context, "all_gather", c10d.AllgatherOptions, *opts, **more)
        tensor = call.tensor(inputs)
        return call.run("all_gather", [tensor], call.tensor_per_rank(outputs, like=tensor))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        call = TorchCall(self._context, "all_gather_single", c10d.AllgatherOptions, opts)
        call.check_dtypes([call.tensor(input), call.tensor(output)])
        call.check_full("output", output, "input", input)
        return call.run("all_gather", [input], [output])

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """output_lists[rank] are the tensors of that rank."""
        name, kind = "all_gather_coalesced", c10d.AllgatherOptions
        by_input = zip(*output_lists, strict=True)
        calls = [([list(o)], [i]) for o, i in zip(by_input, inputs, strict=True)]
        results = [tensor for outputs in output_lists for tensor in outputs]
        return self._run_all(name, kind, self.allgather, calls, opts, inputs, results)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        name, kind = "all_gather_single_coalesced", c10d.AllgatherOptions
        calls = zip(outputs, inputs, strict=True)
        return self._run_all(name, kind, self.all_gather_single, calls, opts, inputs, outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Lists, inputs: Tensors, *opts: Any, **more: Any) -> Work:
        call = TorchCall(self._context, "gather", c10d.GatherOptions, *opts, **more)
        tensor, root = call.tensor(inputs), call.root()
        is_root = self._engine.rank == root
        received = call.tensor_per_rank(outputs, like=tensor) if is_root else []
        return call.run("gather", [tensor], received, root=root)

    def scatter(self, outputs: Tensors, inputs: Lists, *opts: Any, **more: Any) -> Work:
        call = TorchCall(self._context, "scatter", c10d.ScatterOptions, *opts, **more)
        tensor, root = call.tensor(outputs), call.root()
        is_root = self._engine.rank == root
        sent = call.tensor_per_rank(inputs, like=tensor) if is_root else []
        return call.run("scatter", sent, [tensor], root=root)

    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], *opts: Any, **more: Any
    ) -> Work:
        call = TorchCall(self._context, "all_to_all", c10d.AllToAllOptions, *opts, **more)
        sent = call.tensor_per_rank([inputs])
        received = call.tensor_per_rank([outputs], like=sent[self._engine.rank])
        return call.run("all_to_all", sent, received)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *opts: Any,
        **more: Any,
    ) -> Work:
        call = TorchCall(self._context, "all_to_all_single", c10d.AllToAllOptions, *opts, **more)
        call.check_dtypes([call.tensor(input), call.tensor(output)])
        received = call.split_counts(output_split_sizes, output, "output")
        sent = call.split_counts(input_split_sizes, input, "input")
        return call.run("all_to_all", [input], [output], counts=(sent, received))

    alltoall_base = all_to_all_single

    # -- barriers and messages ---------------------------------------------------------------------

    def barrier(self, opts: Any = None, timeout: timedelta | None = None, **_: Any) -> Work:
        call = TorchCall(self._context, "barrier", c10d.BarrierOptions, opts, timeout)
        return call.submit(partial(self._engine.barrier, timeout_s=call.timeout_s), [], [])

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        call = TorchCall(self._context, "monitored_barrier", c10d.BarrierOptions)
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        monitored_barrier(call, self._engine, timeout_s, wait_all_ranks=wait_all_ranks)

    def send(self, tensors: list[Tensor], dest: int, tag: int = 0) -> Work:
        call = TorchCall(self._context, "send")
        tensor, dest = call.tensor(tensors), call.rank(dest, "dst")
        staging = self._context.stage(tensor, on_host=True)
        buffer = staging.input(tensor)
        self._context.check_open("send")
        staging.load()
        request = self._engine.send(buffer, dest=dest, tag=tag)
        work = self._context.add_message(request, tensor, staging, f"send to rank {dest}")
        if not work.poll():
            self._context.progress_thread.add(work)  # the program may compute before it waits
        return work

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        TorchCall(self._context, "recv").rank(source, "src")
        return self._receive(tensors, source, tag, f"recv from rank {source}")

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, None, tag, "recv from any rank")

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int, text: str) -> Work:
        tensor = TorchCall(self._context, "recv").tensor(tensors)
        staging = self._context.stage(tensor, on_host=True)
        buffer = staging.output(tensor)
        self._context.check_open("recv")
        request = self._engine.receive(buffer, source=source, tag=tag)
        return self._context.add_message(request, tensor, staging, text, source)

    def _run_all(
        self,
        name: str,
        kind: type,
        method: Callable[..., Work],
        calls: Iterable[Sequence[Any]],
        opts: Any,
        inputs: list[Tensor],
        results: list[Tensor],
    ) -> Work:
        """Call `method` with each of `calls` and the same options; return one work for all.

        inputs: for a profiler, as `results` those of all calls."""
        opts = make_options(kind, opts)

        def make_calls() -> list[Work]:
            return [method(*arguments, opts) for arguments in calls]

        works = make_calls_in_event(name, inputs, make_calls) if is_profiling() else make_calls()
        return (
            CoalescedWork(works, results, self._context.label(name))
            if opts.asyncOp
            else self._completed
        )

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002
        self._context.coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:  # noqa: ARG002
        works, self._context.coalesced = self._context.coalesced, None
        label = self._context.label("coalesced calls")
        return CoalescedWork(works, [], label) if works else self._completed

    def path_of(self, device: torch.device) -> Literal["direct", "host"]:
        """Return how tensors of `device` reach MPI, but for messages and what the device itself
        cannot reduce: as they are, or through pinned host memory. The same on every rank."""
        return "direct" if device.type == "cpu" or self.session.is_gpu_aware else "host"

    # -- name and backend --------------------------------------------------------------------------

    def name(self) -> str:
        return "mpi"

    getBackendName = _get_backend_name = name  # noqa: N815

    def getGroupName(self) -> str:  # noqa: N802
        return self._context.group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._context.group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def get_group_store(self) -> dist.Store | None:
        return self._store

    supports_splitting = True  # serves `dist.split_group`, which torch_patches.py replaces
    supports_coalescing = supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        return self._context.devices

    def _get_backend(self, device: torch.device) -> Any:
        if device.type in {own.type for own in self._context.devices}:
            return self
        raise RuntimeError(f"No backend type associated with device type {device.type}")

    @property
    def options(self) -> Any:
        return c10d.Backend.Options("mpi", timedelta(seconds=self._engine.timeout_s))

    def supports_tensor_alloc(self, device: torch.device) -> bool:  # noqa: ARG002
        return False

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        pass

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        for work in self._queue.unfinished():
            with suppress(Exception):
                work.wait()

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._engine.sequence

    @property
    def traffic(self) -> TrafficCounter | None:
        """Counters of the bytes that this rank sends and receives; None (default): not counted.

        Groups created later share the counters of the default group."""
        return self._engine.traffic

    @traffic.setter
    def traffic(self, traffic: TrafficCounter | None) -> None:
        self._engine.traffic = traffic

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls that pass none."""
        self._engine.timeout_s = timeout.total_seconds()

    _set_default_timeout = setTimeout = set_timeout  # noqa: N815

    def shutdown(self) -> None:
        """Complete the submitted collectives and free all resources. Collective."""
        self._context.shutdown()

    def abort(self) -> None:
        """Abort the group: its waits end with an error, here and on the peers."""
        self._context.abort()
