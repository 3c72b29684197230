"""The engine's errors as those that users of PyTorch expect."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed import DistBackendError

from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError

ENDED = (WaitTimeoutError, MismatchError, PeerFailedError)


def as_torch(error: BaseException) -> BaseException:
    """A `DistBackendError`, which is a RuntimeError, with the same message, where the engine gave
    up; any other error as it is. Programs know a timeout by the words that gloo has for it."""
    if isinstance(error, WaitTimeoutError):
        return DistBackendError(f"Timed out waiting: {error}")
    return DistBackendError(str(error)) if isinstance(error, ENDED) else error


def calling(call: Callable[[], object]) -> None:
    """Call, and raise as PyTorch would."""
    try:
        call()
    except ENDED as error:
        raise as_torch(error) from None
