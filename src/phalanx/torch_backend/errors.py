"""The engine's errors as those that users of PyTorch expect."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed import DistBackendError

from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError

ENGINE_ERRORS = (WaitTimeoutError, MismatchError, PeerFailedError)


def to_torch_error(error: BaseException) -> BaseException:
    """A `DistBackendError`, which is a RuntimeError, with the same message, where the engine gave
    up; any other error as it is. Programs know a timeout by the words that gloo has for it."""
    if isinstance(error, WaitTimeoutError):
        return DistBackendError(f"Timed out waiting: {error}")
    return DistBackendError(str(error)) if isinstance(error, ENGINE_ERRORS) else error


def call_with_torch_errors(call: Callable[[], object]) -> None:
    """Call, and raise as PyTorch would."""
    try:
        call()
    except ENGINE_ERRORS as error:
        raise to_torch_error(error) from None
