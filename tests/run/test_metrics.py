"""Metrics of a program reach a writer of TensorBoard, from rank 0 alone."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Ranks

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")


def scalars(file: Path) -> Iterator[tuple[int, str, float]]:
    """Yield step, name and value of an event file: records with a length before, and checksums."""
    content = file.read_bytes()
    while content:
        (length,) = struct.unpack_from("<Q", content)
        event = event_pb2.Event.FromString(content[12 : 12 + length])
        for value in event.summary.value:
            yield event.step, value.tag, value.simple_value
        content = content[16 + length :]


@pytest.mark.mpi
def test_tensorboard(tmp_path: Path, ranks: Ranks, programs: Callable[[str], Path]) -> None:
    ranks.mpi(2, programs("metrics.py"), str(tmp_path))
    (file,) = (tmp_path / "logs").iterdir()
    assert sorted(scalars(file)) == [
        (3, "epoch", 0.0),
        (3, "samples", 16.0),
        (7, "epoch", 1.0),
        (7, "samples", 16.0),
    ]
