"""`import phalanx` offers its names, and costs nothing before they are asked for."""

import subprocess
import sys

import phalanx

PROGRAM = """
import sys
import phalanx
assert set(phalanx.__all__) <= set(dir(phalanx))
heavy = {"torch", "mpi4py", "numpy"} & set(sys.modules)
assert not heavy, heavy
for name in phalanx.__all__:
    assert getattr(phalanx, name).__name__ == name
assert phalanx.World.__module__ == "phalanx.comm.world"
try:
    phalanx.Wolrd
except AttributeError as error:
    print(error)
"""


def test_names_are_loaded_when_they_are_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "module phalanx has no attribute 'Wolrd'\n"


def test_what_is_public_is_documented() -> None:
    for name in phalanx.__all__:
        assert getattr(phalanx, name).__doc__
        assert name in phalanx.__all__
