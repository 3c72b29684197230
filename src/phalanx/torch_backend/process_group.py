"""The process group that PyTorch gets for backend "mpi"."""

from __future__ import annotations

from phalanx.torch_backend.data_movement import DataMovementMixin
from phalanx.torch_backend.monitored_barrier import MonitoredBarrierMixin
from phalanx.torch_backend.point_to_point import PointToPointMixin
from phalanx.torch_backend.reductions import ReductionsMixin


class ProcessGroupMPI(ReductionsMixin, DataMovementMixin, PointToPointMixin, MonitoredBarrierMixin):
    """All collectives of torch.distributed on a `comm.Group`."""
