"""A rank whose third step raises on the rank named by RAISING_RANK."""

import os

from phalanx.jobs.detect import detect
from phalanx.train.schedule import LRSchedule
from phalanx.train.session import train_as_launched

stock = LRSchedule.at


def at(schedule: LRSchedule, step: int) -> float:
    launched = detect(os.environ)
    if step == 3 and launched is not None and launched.rank == int(os.environ["RAISING_RANK"]):
        raise ZeroDivisionError("a fault made for a test")
    return stock(schedule, step)


LRSchedule.at = at  # type: ignore[method-assign]
train_as_launched()
