"""Functions that readers run in tests; importable, as reader processes need it."""

import os
import signal
import time
from pathlib import Path

import numpy as np


def squares(number: int) -> dict[str, np.ndarray]:
    return {"square": np.full(1000, number**2), "none": np.empty((0, 3))}


def growing(number: int) -> np.ndarray:
    return np.full(1 + number * 1000, number)


def broken_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three is broken")
    return number


def killed_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def asleep(_: int) -> None:
    time.sleep(60)


def leaves_a_note(folder: str) -> int:
    Path(folder, str(os.getpid())).touch()
    return os.getpid()


class UnpicklableError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises_unpicklable(number: int) -> None:
    raise UnpicklableError(number, 2)
