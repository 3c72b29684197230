"""The base of ProcessGroupMPI: queueing of collectives, names, devices, shutdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Backend
from torch.distributed import DistBackendError, Work

from phalanx.comm.group import Group
from phalanx.comm.traffic import TrafficCounter
from phalanx.torch_backend.arguments import check_rank
from phalanx.torch_backend.collective_queue import CollectiveQueue
from phalanx.torch_backend.ddp import DDPBuckets
from phalanx.torch_backend.errors import call_with_torch_errors
from phalanx.torch_backend.gpu_staging import (
    DirectDeviceStaging,
    PinnedHostStaging,
    device_types,
    is_direct,
    is_staged,
)
from phalanx.torch_backend.point_to_point_work import ProgressThread
from phalanx.torch_backend.profiling import is_profiling, profiled
from phalanx.torch_backend.session import Session
from phalanx.torch_backend.tensors import TensorStaging
from phalanx.torch_backend.work import CoalescedWork, CompletedWork, QueuedWork, patch_future_wait

GRACE_S = 5.0  # after the timeout of a collective, to name the missing ranks
ABORT_S = 3.0  # for a collective to notice that its group is aborted

if TYPE_CHECKING:

    class ProcessGroup:
        """Stub for type checks: PyTorch declares overloads, of which the methods take any."""

        def __init__(self, rank: int, size: int) -> None: ...
else:
    from torch.distributed import ProcessGroup


class ProcessGroupMPIBase(ProcessGroup):
    """One rank's part in a group; PyTorch calls the methods by their names.

    `ProcessGroupMPI` adds the collectives, in mixins.
    """

    def __init__(
        self, engine: Group, session: Session, store: dist.Store | None, name: str
    ) -> None:
        super().__init__(engine.rank, engine.size)
        self._engine, self.session, self._store = engine, session, store
        self._closed_reason: str | None = None
        self._name, self._desc = name, "undefined"
        self._devices = [torch.device(kind) for kind in device_types()]
        self._queue = CollectiveQueue(f"phalanx collectives {name}")
        self._progress_thread = ProgressThread(f"phalanx messages {name}")
        self._completed = CompletedWork([])  # shared by all synchronous collectives
        self._coalesced: list[Work] | None = None
        self.buckets = DDPBuckets(engine.shm, session.world.settings)
        patch_future_wait()
        session.add_group(self)

    # -- running collectives -----------------------------------------------------------------------

    def _run(
        self,
        name: str,
        call: Callable[[], object],
        *,
        is_async: bool,
        results: list[Tensor],
        staging: TensorStaging | None = None,
        inputs: Sequence[Tensor] | None = None,
    ) -> Work:
        """Run `call` inline if it is synchronous and the queue is empty, else submit it.

        inputs: tensors whose shapes a profiler records; None: the results.
        """
        if self._closed_reason is not None:
            raise RuntimeError(f"{self._label(name)}: {self._closed_reason}")
        if staging is not None:
            call = staging.wrap(call)
        if is_profiling():
            call = profiled(name, results if inputs is None else inputs, call)
        if not is_async and self._queue.run_inline(partial(call_with_torch_errors, call)):
            if staging is not None:
                staging.sync_stream()
            return self._completed
        work = QueuedWork(call, results, self._label(name), self._queue)
        if staging is not None:
            work.sync_stream = staging.sync_stream
        self._queue.submit(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        if not is_async:
            work.wait()
        return work

    def _run_coalesced(
        self,
        name: str,
        calls: Sequence[Callable[[Any], Work]],
        opts: Any,
        results: list[Tensor],
    ) -> Work:
        """Start several collectives; return one work for all."""
        works = [call(opts) for call in calls]
        return CoalescedWork(works, results, self._label(name)) if opts.asyncOp else self._completed

    def _check_root(self, root: int, collective: str) -> int:
        return check_rank(root, self, collective, "the root")

    def _stage(self, tensor: Tensor, *, reduces: bool = False) -> TensorStaging:
        """Return the staging of a collective on `tensor` and others on the same device."""
        if tensor.is_cpu:
            return TensorStaging()
        is_aware = self.session.world.is_gpu_aware
        if is_staged(tensor.device.type, self._devices) and is_direct(
            tensor.dtype, reduces=reduces, is_gpu_aware=is_aware
        ):
            return DirectDeviceStaging(tensor.device, self._engine.on_device)
        return self._stage_on_host(tensor)

    def _stage_on_host(self, tensor: Tensor) -> TensorStaging:
        """Return a staging in host memory."""
        if tensor.is_cpu:
            return TensorStaging()
        if is_staged(tensor.device.type, self._devices):
            return PinnedHostStaging(tensor.device)
        raise ValueError(
            f"rank {self._engine.rank} of group {self._name}: backend mpi moves tensors of "
            f"{', '.join(device.type for device in self._devices)}, not of {tensor.device}"
        )

    def _label(self, collective: str) -> str:
        """Return the start of an error message: rank in the group, group and collective."""
        return f"rank {self._engine.rank} of group {self._name}, {collective}"

    def _timeout_s(self, timeout: timedelta) -> float | None:
        """Return seconds, or None for the group's timeout: PyTorch passes zero or less for it."""
        return timeout.total_seconds() if timeout.days >= 0 and timeout else None

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> Work:  # noqa: ARG002
        works, self._coalesced = self._coalesced or [], None
        return (
            CoalescedWork(works, [], self._label("coalesced calls")) if works else self._completed
        )

    # -- name and size -----------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802
        return "mpi"

    def _get_backend_name(self) -> str:
        return "mpi"

    def name(self) -> str:
        return "mpi"

    def rank(self) -> int:
        return self._engine.rank

    def size(self) -> int:
        return self._engine.size

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    def get_group_store(self) -> dist.Store | None:
        return self._store

    # -- backend interface -------------------------------------------------------------------------

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    @property
    def _device_types(self) -> list[torch.device]:
        return self._devices

    def _get_backend(self, device: torch.device) -> Any:
        if device.type in {own.type for own in self._devices}:
            return self
        raise RuntimeError(f"No backend type associated with device type {device.type}")

    @property
    def options(self) -> Any:
        timeout = timedelta(seconds=self._engine.timeout_s)
        return Backend.Options("mpi", timeout)

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

    @property
    def traffic(self) -> TrafficCounter | None:
        """Counters of the bytes that this rank sends and receives; None (default): not counted.

        Groups created later share the counters of the default group."""
        return self._engine.traffic

    @traffic.setter
    def traffic(self, traffic: TrafficCounter | None) -> None:
        self._engine.traffic = traffic

    def _get_sequence_number_for_group(self) -> int:
        return self._engine.sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls that pass none."""
        self._engine.timeout_s = timeout.total_seconds()

    _set_default_timeout = set_timeout
    setTimeout = set_timeout  # noqa: N815

    # -- shutdown ----------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Complete the submitted collectives and free all resources. Collective.

        Running calls end within the timeout of the group, with a result or an error.

        Raises: DistBackendError, once, when some failed or did not end; these never run later. A
        second `destroy_process_group` succeeds.
        """
        if self._closed_reason is not None:
            return
        if self._queue.is_inside():
            raise RuntimeError(
                f"{self._label('destroy_process_group')}: called by a signal handler in the "
                "middle of a collective; set a flag there and destroy the group after it"
            )
        self._closed_reason = "the group has been destroyed"
        was_usable = self._engine.broken is None
        unfinished = self._queue.unfinished()
        if not self._close(self._engine.timeout_s + GRACE_S):
            texts = ", ".join(task.text for task in unfinished)
            self._give_up(f"rank {self.rank()} destroyed group {self._name} in {texts}")
        errors = [task.error for task in unfinished if task.error is not None]
        if errors and was_usable:
            raise DistBackendError(
                f"{self._label('destroy_process_group')}: {len(errors)} of its collectives, which "
                f"nobody waited for, failed: {errors[0]}"
            )

    def abort(self) -> None:
        """Abort the group: its waits end with an error, here and on the peers."""
        if self._closed_reason is None:
            self._closed_reason = "the group has been aborted"
            with suppress(DistBackendError):
                self._give_up(f"rank {self._engine.rank} aborted group {self._name}")

    def _give_up(self, reason: str) -> None:
        """Fail the engine and close. Raises: DistBackendError when a call keeps running."""
        self._engine.fail(reason)
        if self._engine is self.session.world.group:
            self.session.has_failed = True
        if not self._close(ABORT_S):
            texts = ", ".join(task.text for task in self._queue.unfinished())
            raise DistBackendError(
                f"{self._label('destroy_process_group')}: still under way, after "
                f"{self._engine.timeout_s:g} s and although the group was given up: "
                f"{texts or 'a call of another thread'}"
            )

    def refuse(self, reason: str) -> None:
        """Raise RuntimeError with `reason` in every later call; free nothing."""
        self._closed_reason = reason

    def close(self, timeout_s: float) -> bool:
        """End the threads; return whether no call is running any more."""
        self._progress_thread.close()
        return self._queue.close(timeout_s)

    def _close(self, timeout_s: float) -> bool:
        """End the threads and leave the session; False while a call runs and needs the engine."""
        ended = self.close(timeout_s)
        if ended:
            call_with_torch_errors(partial(self.session.remove_group, self, self._engine))
        return ended
