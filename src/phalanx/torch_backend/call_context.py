"""State that all calls of a process group share: devices, queue, messages; and their shutdown."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor
from torch.distributed import DistBackendError, Work

from phalanx.comm.collective import Kind
from phalanx.comm.group import Group
from phalanx.comm.layout import share_of
from phalanx.comm.message_request import MessageRequest
from phalanx.torch_backend.collective_queue import CollectiveQueue, QueuedWork
from phalanx.torch_backend.errors import ENGINE_ERRORS, to_torch_error
from phalanx.torch_backend.gpu_staging import (
    PART_BYTES,
    DirectDeviceStaging,
    PinnedHostStaging,
    device_types,
    is_direct,
    is_staged,
)
from phalanx.torch_backend.point_to_point_work import PointToPointWork, ProgressThread
from phalanx.torch_backend.profiling import begin_event, is_profiling
from phalanx.torch_backend.session import Session
from phalanx.torch_backend.tensors import TensorStaging
from phalanx.torch_backend.work import CompletedWork

GRACE_S = 5.0  # time that a collective has after its timeout to name the missing ranks
ABORT_S = 3.0  # time that a collective has to notice that its group is aborted


class CallContext:
    """Engine, queue and messages of one process group, until it is shut down."""

    def __init__(self, engine: Group, session: Session, name: str) -> None:
        self.engine, self.group_name = engine, name
        self.devices = [torch.device(kind) for kind in device_types()]
        self.queue = CollectiveQueue(f"phalanx collectives {name}")
        self.closed_reason: str | None = None
        self.stages_in_parts = session.stages_in_parts
        self.completed = CompletedWork([])  # shared by all synchronous collectives
        self._session = session
        self.progress_thread = ProgressThread(f"phalanx messages {name}")
        self.coalesced: list[Work] | None = None
        """Works of the calls that are being coalesced; None: calls are not."""
        session.add_group(self)

    def label(self, call: str) -> str:
        """Return the start of an error message: rank in the group, group and call."""
        return f"rank {self.engine.rank} of group {self.group_name}, {call}"

    # -- staging -----------------------------------------------------------------------------------

    def stage(
        self, tensor: Tensor, *, reduces: bool = False, on_host: bool = False
    ) -> TensorStaging:
        """Return the staging of a call on `tensor` and others on the same device. on_host: in host
        memory, whatever MPI takes."""
        if tensor.is_cpu:
            return TensorStaging()
        if not is_staged(tensor.device.type, self.devices):
            raise ValueError(
                f"rank {self.engine.rank} of group {self.group_name}: backend mpi moves tensors of "
                f"{', '.join(device.type for device in self.devices)}, not of {tensor.device}: "
                "make the group where PyTorch sees that device, or move the tensor"
            )
        is_aware = self._session.is_gpu_aware and not on_host
        if is_direct(tensor.dtype, reduces=reduces, is_gpu_aware=is_aware):
            return DirectDeviceStaging(tensor.device, self.engine.on_device)
        return PinnedHostStaging(tensor.device)

    def parts(self, kind: Kind, tensor: Tensor) -> list[range]:
        """Return the elements of each call of the engine for a collective in place; the same on
        every rank, wherever its tensor lies. Calls that are compared first are whole."""
        engine, count, number = self.engine, tensor.numel(), 1
        if self.stages_in_parts and not engine.check and engine.keeps_order_in_parts(kind):
            number = max(1, -(-count * tensor.itemsize // PART_BYTES))
        return [share_of(part, number, count) for part in range(number)]

    # -- running -----------------------------------------------------------------------------------

    def check_open(self, name: str) -> None:
        if self.closed_reason is not None:
            raise RuntimeError(f"{self.label(name)}: {self.closed_reason}")

    def submit(self, work: QueuedWork) -> None:
        self.queue.submit(work)
        self._coalesce(work)

    def add_message(
        self,
        request: MessageRequest,
        tensor: Tensor,
        staging: TensorStaging,
        text: str,
        source: int | None = None,
    ) -> PointToPointWork:
        """Return the work of a message, which the engine has begun: it waits for no collective."""
        work = PointToPointWork(
            request,
            tensor,
            self.label(text),
            staging,
            self.progress_thread,
            timeout_s=self.engine.timeout_s,
            source=source,
        )
        if is_profiling():
            name = "recvAnySource" if "any rank" in text else text.partition(" ")[0]
            work.call_at_end(begin_event(name, [tensor]))
        self._coalesce(work)
        return work

    def _coalesce(self, work: Work) -> None:
        if self.coalesced is not None:
            self.coalesced.append(work)

    # -- shutdown ----------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Complete the submitted calls, and free all resources. Collective.

        Running calls end within the timeout of the group, with a result or an error.

        Raises: DistBackendError, once, when some failed or did not end; these never run later. A
        second `destroy_process_group` succeeds.
        """
        if self.closed_reason is not None:
            return
        label = self.label("destroy_process_group")
        if self.queue.is_inside():
            raise RuntimeError(
                f"{label}: called by a signal handler in the "
                "middle of a collective; set a flag there and destroy the group after it"
            )
        self.closed_reason = "the group has been destroyed"
        was_usable = self.engine.broken is None
        unfinished = self.queue.unfinished()
        if not self._leave(self.engine.timeout_s + GRACE_S):
            texts = ", ".join(task.text for task in unfinished)
            self._give_up(f"rank {self.engine.rank} destroyed group {self.group_name} in {texts}")
        errors = [task.error for task in unfinished if task.error is not None]
        if errors and was_usable:
            raise DistBackendError(
                f"{label}: {len(errors)} of its collectives, which no call waited for, failed: "
                f"{errors[0]}"
            )

    def abort(self) -> None:
        """Abort the group: its waits end with an error, here and on the peers."""
        if self.closed_reason is None:
            self.closed_reason = "the group has been aborted"
            with suppress(DistBackendError):
                self._give_up(f"rank {self.engine.rank} aborted group {self.group_name}")

    def _give_up(self, reason: str) -> None:
        """Fail the engine and leave. Raises: DistBackendError when a call keeps running."""
        self.engine.fail(reason)
        if self.engine is self._session.world.group:
            self._session.has_failed = True
        if not self._leave(ABORT_S):
            texts = ", ".join(task.text for task in self.queue.unfinished())
            raise DistBackendError(
                f"{self.label('destroy_process_group')}: still under way, after "
                f"{self.engine.timeout_s:g} s although the group was aborted: "
                f"{texts or 'a call of another thread'}"
            )

    def refuse(self, reason: str) -> None:
        """Raise RuntimeError with `reason` in every later call; free nothing."""
        self.closed_reason = reason

    def close(self, timeout_s: float) -> bool:
        """End the threads; return whether no call is running any more."""
        self.progress_thread.close()
        return self.queue.close(timeout_s)

    def _leave(self, timeout_s: float) -> bool:
        """End the threads and leave the session; False while a call runs and needs the engine."""
        ended = self.close(timeout_s)
        if ended:
            try:
                self._session.remove_group(self, self.engine)
            except ENGINE_ERRORS as error:
                raise to_torch_error(error) from None
        return ended
