"""End of the default group of torch.distributed."""

from __future__ import annotations

import torch.distributed as dist

from phalanx.comm.in_flight import keep_alive_forever


def destroy_default_group() -> None:
    """Destroy it, and all groups beside it. Collective on some backends.

    One of Gloo stays in memory: PyTorch (2.13) frees it with the interpreter's lock held, waits
    for its threads, and one of them may want that lock to end the last sum.
    """
    if dist.get_backend() == "gloo":
        keep_alive_forever(dist.group.WORLD)
    dist.destroy_process_group()
