"""All-reduces of ranks that are killed: `all_reduces.py how seed kills seconds folder`.

how: `memory` or `messages`. From the seed every rank knows who dies, and when: some time after the
start, or after the begin of its first recovery. Each survivor writes what it saw to `folder`.
"""

import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.recovery import finish, is_recoverable, recover
from phalanx.comm.world import World
from phalanx.jobs.leftovers import mapped_files

RECOVERY_S = 0.1
"""Of the moments at which ranks die after the begin of a recovery."""
OVER, DYING = threading.Event(), threading.Lock()
"""Nobody dies any more; who dies does so whole, with no record of a survivor."""


def die_after(seconds: float, rank: int, folder: Path) -> None:
    def die() -> None:
        DYING.acquire()
        if OVER.is_set():
            DYING.release()
            return
        with (folder / f"killed-{rank}").open("w") as file:
            file.write(str(time.time()))
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    timer = threading.Timer(seconds, die)
    timer.daemon = True
    timer.start()


def step(world: World, how: str, number: int, is_over: bool) -> bool:
    """Return whether all are to end."""
    values = np.full(10_000, (1 + world.original_rank) * (1 + number % 100), np.float32)
    values[0] = is_over
    world.group.all_reduce(Buffer.of(values), algorithm=None if how == "memory" else "ring")
    expected = sum(1 + rank for rank in world.original_ranks) * (1 + number % 100)
    assert (values[1:] == expected).all(), (values[1], expected, world.original_ranks)
    if number % 10 == 0:
        world.barrier()
    return bool(values[0] > 0)


def main(how: str, seed: str, kills: str, seconds: str, folder: Path) -> None:
    faulthandler.dump_traceback_later(60, exit=True)
    world = World.create(timeout_s=30)
    own, plan = world.rank, random.Random(int(seed))
    victims = plan.sample(range(world.size), int(kills))
    late = [plan.random() < 0.5 for _ in victims]
    late[:1] = [False] * len(late[:1])
    moments = [plan.random() for _ in victims]
    deaths = {v: (is_late, at) for v, is_late, at in zip(victims, late, moments, strict=True)}
    mapped = [str(path) for path in mapped_files(os.getpid()) if path.parts[1] in ("dev", "tmp")]
    (folder / f"mapped-{own}").write_text("\n".join(mapped))
    world.barrier()
    end = time.monotonic() + float(seconds)
    is_late, moment = deaths.get(own, (True, None))
    if moment is not None and not is_late:
        die_after(moment * float(seconds), own, folder)
    number, seen = 0, list[dict[str, Any]]()
    while True:
        try:
            while not step(world, how, number, time.monotonic() > end):
                number += 1
            number += 1
        except Exception as error:
            if not is_recoverable(error):
                raise
            failure: str | None = str(error)
        else:
            if finish(world):
                with DYING:
                    OVER.set()
                break
            failure = None
        noticed = time.time()
        if moment is not None and is_late:
            die_after(moment * RECOVERY_S, own, folder)
        recovery = recover(world, progress=number)
        assert max(recovery.progress) - min(recovery.progress) <= 1, recovery.progress
        world, number = recovery.world, min(recovery.progress)
        assert world.original_rank == own
        seen.append(
            {
                "noticed": noticed,
                "recovered": time.time(),
                "lost": recovery.lost,
                "attempts": recovery.attempts,
                "error": failure,
            }
        )
    record = {
        "steps": number,
        "ended": time.time(),
        "ranks": world.original_ranks,
        "recoveries": seen,
    }
    (folder / f"survivor-{own}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:5], Path(sys.argv[5]))
