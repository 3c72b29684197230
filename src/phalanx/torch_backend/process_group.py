"""The process group that PyTorch gets for backend "mpi"."""

from __future__ import annotations

from phalanx.torch_backend.exchanges import Exchanges
from phalanx.torch_backend.messages import Messages
from phalanx.torch_backend.monitored import Monitored
from phalanx.torch_backend.reductions import Reductions


class MpiProcessGroup(Reductions, Exchanges, Messages, Monitored):
    """All collectives of torch.distributed on a `comm.Group`."""
