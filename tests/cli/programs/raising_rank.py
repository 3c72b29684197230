"""A rank whose third step raises on the rank named by RAISING_RANK."""

import os
import sys
from pathlib import Path

from phalanx.jobs.detect import detect
from phalanx.train import rank
from phalanx.train.schedule import LRSchedule

stock = LRSchedule.at


def at(schedule: LRSchedule, step: int) -> float:
    launched = detect(os.environ)
    if step == 3 and launched is not None and launched.rank == int(os.environ["RAISING_RANK"]):
        raise ZeroDivisionError("a fault made for a test")
    return stock(schedule, step)


LRSchedule.at = at  # type: ignore[method-assign]
rank.run_started_by_phalanx(Path(sys.argv[1]))
