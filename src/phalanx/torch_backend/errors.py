"""Translation of the engine's errors to those of PyTorch."""

from __future__ import annotations

from torch.distributed import DistBackendError

from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError

ENGINE_ERRORS = (WaitTimeoutError, MismatchError, PeerFailedError)


def to_torch_error(error: BaseException) -> BaseException:
    """Return an engine error as `DistBackendError`, a RuntimeError; any other error unchanged.

    Timeouts have gloo's words, also in the middle of the text, by which programs know them.
    """
    if isinstance(error, WaitTimeoutError):
        return DistBackendError(f"mpi: Timed out waiting: {error}")
    return DistBackendError(str(error)) if isinstance(error, ENGINE_ERRORS) else error
