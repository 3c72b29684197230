"""Stages of torch.distributed.pipelining whose actions are timed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, device, nn
from torch.distributed.pipelining import PipelineStage

from phalanx.parallel.pipeline.orders import Kind
from phalanx.parallel.pipeline.recorder import Recorder


class TimedStage(PipelineStage):
    """A stage of torch.distributed.pipelining that reports its actions to a recorder."""

    def __init__(
        self,
        module: nn.Module,
        number: int,
        num_stages: int,
        *,
        given: Tensor,
        made: Tensor,
        group: dist.ProcessGroup,
        recorder: Recorder,
    ) -> None:
        """given, made: a micro-batch's input and output; only shape, dtype and whether they need
        gradients are looked at."""
        super().__init__(
            module,
            number,
            num_stages,
            device("cpu"),
            input_args=given,
            output_args=made,
            group=group,
        )
        self._recorder = recorder

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return _ready(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return _ready(super().get_bwd_send_ops(bwd_chunk_id))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        began_s = self._recorder.now()
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._recorder.add("forward", self.stage_index, fwd_chunk_id, began_s)
        return output

    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> None:
        began_s = self._recorder.now()
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        kind: Kind = "backward" if full_backward else "input gradient"
        self._recorder.add(kind, self.stage_index, bwd_chunk_id, began_s)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        began_s = self._recorder.now()
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._recorder.add("weight gradient", self.stage_index, bwd_chunk_id, began_s)


def _ready(sends: list[dist.P2POp]) -> list[dist.P2POp]:
    for send in sends:
        send.tensor = ready(send.tensor)
    return sends


def ready(tensor: Tensor) -> Tensor:
    """Return `tensor`, waiting for a sum over tensor-parallel ranks that may still be in flight.

    Backends take plain tensors alone.
    """
    wait = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()
