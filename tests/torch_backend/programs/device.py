"""Each rank: conformance.py on the way of GPU tensors to a GPU-aware MPI.

There is no GPU here, and MPI does not care: the tensors lie on the CPU, which is said to be a
device with streams that do everything at once.
"""

import runpy
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from phalanx.torch_backend import process_group
from phalanx.torch_backend.call_context import CallContext
from phalanx.torch_backend.gpu_staging import DirectDeviceStaging, is_direct
from phalanx.torch_backend.tensors import TensorStaging

CPU = torch.device("cpu")


class Stream:
    """A stream, and its own events."""

    def record_event(self) -> "Stream":
        return self

    def wait_event(self, event: "Stream") -> None:
        pass

    def synchronize(self) -> None:
        pass


class Streams:
    def current_stream(self, _: torch.device) -> Stream:
        return Stream()

    def Stream(self, _: torch.device) -> Stream:  # noqa: N802
        return Stream()

    def stream(self, _: Stream) -> AbstractContextManager[None]:
        return nullcontext()


num_direct = 0


def staging(
    context: CallContext, tensor: Tensor, *, reduces: bool = False, on_host: bool = False
) -> TensorStaging:
    global num_direct
    if is_direct(tensor.dtype, reduces=reduces, is_gpu_aware=not on_host):
        num_direct += 1
        return DirectDeviceStaging(CPU, context.engine.on_device, Streams())
    return as_it_was(context, tensor, on_host=True)


as_it_was = CallContext.stage
CallContext.stage = staging  # type: ignore[method-assign]
process_group.is_plain = lambda _: False  # the short cut is for the CPU
runpy.run_path(str(Path(__file__).with_name("conformance.py")), run_name="__main__")
assert num_direct > 1000, num_direct
