"""A rank whose third step raises on the rank named by RAISING_RANK."""

import os
import sys
from pathlib import Path
from typing import Any

from phalanx.launch.detect import detect
from phalanx.train import loop, rank

stock = loop.set_learning_rate


def set_learning_rate(work: Any, step: int) -> None:
    launched = detect(os.environ)
    if step == 3 and launched is not None and launched.rank == int(os.environ["RAISING_RANK"]):
        raise ZeroDivisionError("a fault made for a test")
    stock(work, step)


loop.set_learning_rate = set_learning_rate
rank.run_started_by_phalanx(Path(sys.argv[1]))
