"""`python -m phalanx.train`: one rank of a run that `phalanx train` started."""

import gc

from phalanx.jobs.streams import lose_what_the_disk_refuses, prepare_streams

lose_what_the_disk_refuses()
prepare_streams()
gc.disable()  # disabled until the loop (session.py): scanning imported objects is slow
from phalanx.train.session import train_as_launched  # noqa: E402  # loads PyTorch

train_as_launched()
