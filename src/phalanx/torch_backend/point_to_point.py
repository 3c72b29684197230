"""Point-to-point messages, posted at once: they never wait behind a collective."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.distributed import Work

from phalanx.comm.group import Request
from phalanx.torch_backend.arguments import checked_rank, only
from phalanx.torch_backend.point_to_point_work import PointToPointWork
from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase
from phalanx.torch_backend.profiling import begin_event, is_profiling
from phalanx.torch_backend.tensors import TensorStaging


class PointToPointMixin(ProcessGroupMPIBase):
    """`send` and `recv` of `ProcessGroupMPI`."""

    def send(self, tensors: list[Tensor], dest: int, tag: int = 0) -> Work:
        tensor = only(tensors, self, "send")
        checked_rank(dest, self, "send", "dst")
        places = self._host_places(tensor)
        buffer = places.reads(tensor)
        self._refuse("send")
        places.load()
        request = self._engine.send(buffer, dest=dest, tag=tag)
        work = self._message(request, tensor, places, f"send to rank {dest}", None)
        if not work.move():
            self._watcher.add(work)  # the program may compute before it waits
        return work

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        checked_rank(source, self, "recv", "src")
        return self._receive(tensors, source, tag, f"recv from rank {source}")

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        return self._receive(tensors, None, tag, "recv from any rank")

    def _receive(self, tensors: list[Tensor], source: int | None, tag: int, text: str) -> Work:
        tensor = only(tensors, self, "recv")
        places = self._host_places(tensor)
        buffer = places.writes(tensor)
        self._refuse("recv")
        request = self._engine.receive(buffer, source=source, tag=tag)
        return self._message(request, tensor, places, text, source)

    def _refuse(self, name: str) -> None:
        if self._refusal is not None:
            raise RuntimeError(f"{self._where(name)}: {self._refusal}")

    def _message(
        self, request: Request, tensor: Tensor, places: TensorStaging, text: str, source: int | None
    ) -> PointToPointWork:
        store: Callable[[], None] = places.store
        work = PointToPointWork(
            request,
            [tensor],
            self._where(text),
            timeout_s=self._engine.timeout_s,
            source=source,
            store=store,
            watch=self._watcher.add,
        )
        work.after_wait = places.after_wait
        if is_profiling():
            name = "recvAnySource" if "any rank" in text else text.partition(" ")[0]
            work.at_end = begin_event(name, [tensor])
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work
