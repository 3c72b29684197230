"""A program that starts a worker, and does not ask whether it is the worker itself."""

import multiprocessing
import sys

from phalanx.comm.world import World

world = World.create(timeout_s=30)
if __name__ == "__main__":
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=print)
    worker.start()
    worker.join(60)
    print(f"the worker ended with {worker.exitcode}")
world.close()
