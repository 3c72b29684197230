"""End of the default group of torch.distributed."""

from __future__ import annotations

import time
from pathlib import Path

import torch.distributed as dist

from phalanx.comm.in_flight import keep_alive_forever

GLOO_THREAD = "pt_gloo_runloop"  # name of each thread of PyTorch that runs Gloo's collectives
LOOKS, LOOK_S, LAST_LOOK_S = 2, 0.001, 5.0


def destroy_default_group() -> None:
    """Destroy it, and all groups beside it. Collective on some backends.

    One of Gloo stays in memory: PyTorch (2.13) frees it with the interpreter's lock held, waits
    for its threads, and one of them may want that lock to end the last sum.
    """
    if dist.get_backend() == "gloo":
        let_threads_rest(GLOO_THREAD)
        keep_alive_forever(dist.group.WORLD)
    dist.destroy_process_group()


def let_threads_rest(name: str) -> None:
    """Wait until all threads of this process with that name sleep, for 5 s at most.

    A thread of Gloo frees the tensors of its last collective after it has said that this is done,
    and needs the interpreter's lock for it. One that is so late that it asks an interpreter which
    is ending for its lock aborts the process. The lock is free while this waits, so that a thread
    that sleeps waits for work.
    """
    last = time.monotonic() + LAST_LOOK_S
    looks = 0
    while looks < LOOKS and time.monotonic() < last:
        time.sleep(LOOK_S)
        looks = 0 if any(_is_running(task, name) for task in _tasks()) else looks + 1


def _tasks() -> list[Path]:
    return list(Path("/proc/self/task").glob("*"))


def _is_running(task: Path, name: str) -> bool:
    try:
        _, thread, rest = (task / "stat").read_text().replace("(", ")").split(")", 2)
    except (OSError, ValueError):  # it has ended
        return False
    return thread == name[:15] and rest.split()[0] != "S"
