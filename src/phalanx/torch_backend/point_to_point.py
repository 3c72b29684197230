"""Point-to-point messages, posted at once: they never wait behind a collective."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.distributed import Work

from phalanx.comm.messages import MessageRequest
from phalanx.torch_backend.arguments import check_rank, single_tensor
from phalanx.torch_backend.point_to_point_work import PointToPointWork
from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase
from phalanx.torch_backend.profiling import begin_event, is_profiling
from phalanx.torch_backend.tensors import TensorStaging


class PointToPointMixin(ProcessGroupMPIBase):
    """`send` and `recv` of `ProcessGroupMPI`."""

    def send(self, tensors: list[Tensor], dest: int, tag: int = 0) -> Work:
        tensor = single_tensor(tensors, self, "send")
        check_rank(dest, self, "send", "dst")
        staging = self._stage_on_host(tensor)
        buffer = staging.input(tensor)
        self._check_open("send")
        staging.load()
        request = self._engine.send(buffer, dest=dest, tag=tag)
        work = self._message(request, tensor, staging, f"send to rank {dest}", None)
        if not work.poll():
            self._progress_thread.add(work)  # the program may compute before it waits
        return work

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        check_rank(source, self, "recv", "src")
        return self._receive(tensors, source, tag, f"recv from rank {source}")

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, None, tag, "recv from any rank")

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int, text: str) -> Work:
        tensor = single_tensor(tensors, self, "recv")
        staging = self._stage_on_host(tensor)
        buffer = staging.output(tensor)
        self._check_open("recv")
        request = self._engine.receive(buffer, source=source, tag=tag)
        return self._message(request, tensor, staging, text, source)

    def _check_open(self, name: str) -> None:
        if self._closed_reason is not None:
            raise RuntimeError(f"{self._label(name)}: {self._closed_reason}")

    def _message(
        self,
        request: MessageRequest,
        tensor: Tensor,
        staging: TensorStaging,
        text: str,
        source: int | None,
    ) -> PointToPointWork:
        store: Callable[[], None] = staging.store
        work = PointToPointWork(
            request,
            [tensor],
            self._label(text),
            timeout_s=self._engine.timeout_s,
            source=source,
            store=store,
            poll_in_background=self._progress_thread.add,
        )
        work.sync_stream = staging.sync_stream
        if is_profiling():
            name = "recvAnySource" if "any rank" in text else text.partition(" ")[0]
            work.on_end = begin_event(name, [tensor])
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work
