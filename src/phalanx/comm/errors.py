"""Errors that end a collective."""

from __future__ import annotations

from phalanx.comm.wait import WaitTimeoutError
from phalanx.errors import UserError

__all__ = [
    "LauncherMismatchError",
    "LibraryNotLoadedError",
    "MismatchError",
    "PeerDepartedError",
    "PeerDiedError",
    "PeerFailedError",
    "WaitTimeoutError",
]


class MismatchError(RuntimeError):
    """Ranks called different collectives, or the same one with other counts, dtypes, operations
    or roots; the message says which rank did what."""


class LauncherMismatchError(UserError, RuntimeError):
    """MPI connects another number of ranks than the launcher started."""


class LibraryNotLoadedError(UserError, RuntimeError):
    """No MPI library could be loaded."""


class PeerFailedError(RuntimeError):
    """Another rank has failed and will not come; the message carries its reason."""


class PeerDepartedError(PeerFailedError):
    """Another rank makes no more calls in a group where this one waits for it."""


class PeerDiedError(PeerFailedError):
    """The process of another rank is gone; the message says in which collective it was missed."""


def encodable(text: str) -> str:
    """Escape what UTF-8 has no bytes for, such as the odd bytes of a file's name."""
    return text.encode(errors="backslashreplace").decode()
