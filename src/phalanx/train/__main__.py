"""`python -m phalanx.train`: one rank of a run that `phalanx train` started."""

import gc

from phalanx.jobs.streams import lose_what_the_disk_refuses, prepare_streams

lose_what_the_disk_refuses()
prepare_streams()
gc.disable()  # until the loop, see session.py: what is imported stays, to look through it is slow
from phalanx.train.session import train_as_launched  # noqa: E402  # loads PyTorch

train_as_launched()
