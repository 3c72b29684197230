"""A rank of `phalanx scratch` that does something odd, as the environment says.

ODD=list: at its end it lists its modules in the run's folder.
ODD=raise: rank ODD_RANK raises in its third step.
"""

import json
import os
import sys
from pathlib import Path

from phalanx.jobs.rank import run_rank
from phalanx.launch.detect import detect
from phalanx.scratch import loop
from phalanx.scratch.session import train

folder, launched = Path(sys.argv[1]), detect(os.environ)


def raising(context, batch, epoch, step, began, original=loop.train_step):  # type: ignore[no-untyped-def]
    if step == 2 and context.world.rank == int(os.environ["ODD_RANK"]):
        raise ZeroDivisionError("a fault made for a test")
    return original(context, batch, epoch, step, began)


if os.environ["ODD"] == "raise":
    loop.train_step = raising
run_rank(folder, launched, lambda: train(folder, Path(sys.argv[2]), launched))
left = {path.name for path in Path(sys.argv[2]).iterdir()} - {".lock"}  # the launcher's
assert not left, f"samples are left behind: {left}"
if os.environ["ODD"] == "list":
    (folder / f"modules-{os.getpid()}.json").write_text(json.dumps(sorted(sys.modules)))
