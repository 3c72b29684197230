"""Each of four ranks on two nodes: who is named when one does not come to a collective by lanes.

Its node waits in memory, the other one for messages.
"""

import time

import numpy as np
from pretended import group_on

from phalanx.comm.buffer import Buffer
from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.world import World

LATE = 1
TIMEOUT_S = {0: 3.0, 2: 1.0, 3: 1.0}
"""The other node asks while this one still waits in memory."""


def main() -> None:
    world = World.create(timeout_s=60)
    group = group_on((0, 0, 1, 1), name="late")
    assert group._peers.intra_node is not None
    group.barrier()
    if group.rank != LATE:
        try:
            group.all_reduce(Buffer.of(np.ones(2**20, np.float32)), timeout_s=TIMEOUT_S[group.rank])
        except (WaitTimeoutError, PeerFailedError) as error:
            text = str(error).split(" (its last")[0]
        assert text.endswith("for rank 1"), text
    time.sleep(0.1)
    world.barrier()
    print(f"rank {world.rank} of 4 is done", flush=True)
    world.close()


main()
