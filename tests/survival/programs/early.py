"""Trains; one rank dies while the program starts, or later: `early.py rank moment`.

moment: import (before MPI is there), world (while all ranks meet), or seconds from the start.
"""

import os
import signal
import sys
import threading
import time
from typing import Any


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


victim, moment = sys.argv[1:]
is_victim = os.environ["RANK"] == victim
if is_victim and moment == "import":
    die()
if is_victim and moment[0].isdigit():
    timer = threading.Timer(float(moment), die)
    timer.daemon = True
    timer.start()

import torch  # noqa: E402

import phalanx  # noqa: E402
from phalanx.comm.world import World  # noqa: E402

if is_victim and moment == "world":
    World._make_group = die  # type: ignore[method-assign,assignment]
model = torch.nn.Linear(20, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.randn(160, 20), torch.randint(3, (160,))
run = phalanx.start(model, optimizer, data, batch_size=16, epochs=4, micro_batches=8, timeout_s=60)
for batch in run:
    time.sleep(0.05)
    run.backward(torch.nn.functional.cross_entropy(run.model(batch.inputs), batch.targets))
run.print("came to its end")
