"""Three ranks, of which the last waits for word, and the second dies: `waiting.py folder`.

Polls are so far apart that all it learns in time it learns by being woken.
"""

import os
import signal
import sys
import time
from pathlib import Path

from phalanx.comm import sub_world
from phalanx.comm.recovery import finish, is_recoverable, recover
from phalanx.comm.world import World

LATE_S = 20.0
REST_S = 0.3
"""After which the rank that waits is asleep."""


def main(folder: Path) -> None:
    sub_world.NAP_S = LATE_S
    world = World.create(timeout_s=30)
    world.barrier()
    began = time.monotonic()
    try:
        if world.rank == 2:
            word = sub_world.await_word(world, 0)
            (folder / "word").write_text(f"{word.decode()} {time.monotonic() - began < LATE_S / 2}")
            sub_world.await_word(world, 0)
        time.sleep(REST_S)
        if world.rank == 0:
            sub_world.send_word(world, b"come", 2)
        time.sleep(REST_S)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()
    except Exception as error:
        if not is_recoverable(error):
            raise
    world = recover(world).world
    (folder / f"left-{world.original_rank}").write_text(str(time.monotonic() - began < LATE_S / 2))
    assert finish(world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
