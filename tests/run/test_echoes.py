"""Errors that follow from a peer's failure, which is shown in their place."""

import pytest
from torch.distributed import DistBackendError

from phalanx.comm.errors import PeerFailedError
from phalanx.run.failure import _is_echo


@pytest.mark.parametrize(
    ("error", "follows"),
    [
        (PeerFailedError("rank 1 failed: its process is gone"), True),
        (
            DistBackendError(
                "rank 1 failed: its process is gone, in broadcast number 73 of group world"
            ),
            True,
        ),
        (
            RuntimeError(
                "[/t/gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:57546. This is"
            ),
            True,
        ),
        (
            RuntimeError(
                "[/t/gloo/tcp/pair.cc:534] Read error [127.0.0.1]:1: Connection reset by peer"
            ),
            True,
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x4 and 3x2)"), False),
        (RuntimeError("rank 1 failed: no such width"), False),
        (ConnectionResetError("[Errno 104] Connection reset by peer"), False),
    ],
)
def test_it_is_known_by_its_words(error: BaseException, follows: bool) -> None:
    """Ranks of PyTorch's engines showed tracebacks when a peer had been killed."""
    assert _is_echo(error) == follows
