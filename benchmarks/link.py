"""Latency and bandwidth of the emulated link, as measured over it and as asked for.

    python benchmarks/link.py            # half a minute
    python benchmarks/link.py --real     # also between two network namespaces, as root; see below

Between two ranks, latency is half the round trip of an empty message. Bandwidth is the bytes of a
message divided by its time beyond the latency. Both are medians. An all-reduce of 10 MB is measured
beside its model: 2 latencies and its bytes once (2 ranks). `--real` measures the same over TCP
between two network namespaces, whose sides send at 1 Gbit/s (`tc tbf`), and all-reduces by the same
algorithm: the emulated 1 Gbit/s should take as long. Results go to runs/benchmarks/link.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from harness import run_ranks, save
from phalanx.comm.buffer import Buffer
from phalanx.comm.link import Link
from phalanx.comm.world import World
from phalanx.jobs.installation import find_mpi

LINKS = ("1Gbit/s,1ms", "10Gbit/s,100us", "1Gbit/s", "100Mbit/s,5ms")
ROUNDS, SUMMED_BYTES = 15, 10_000_000
REAL = "two namespaces, tc tbf 1 Gbit/s"


def median_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS + 2):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def measured(world: World) -> dict[str, float]:
    group, peer = world.group, 1 - world.rank

    def round_trip(memory: np.ndarray) -> None:
        for sends in (world.rank == 0, world.rank != 0):
            if sends:
                group.send(Buffer.of(memory), dest=peer).wait()
            else:
                group.receive(Buffer.of(memory), source=peer).wait()

    bandwidth = world.link.bandwidth_bytes_per_s if world.link else None
    long = np.zeros(int((bandwidth or 125e6) * 0.05), np.uint8)
    latency_s = median_s(lambda: round_trip(np.zeros(0, np.uint8))) / 2
    long_s = median_s(lambda: round_trip(long)) / 2
    values = np.zeros(SUMMED_BYTES // 4, np.float32)
    summed_s = median_s(lambda: group.all_reduce(Buffer.of(values), algorithm="direct"))
    return {
        "latency_s": latency_s,
        "bandwidth_bytes_per_s": long.nbytes / (long_s - latency_s),
        "all_reduce_s": summed_s,
    }


def rank_main(folder: Path, links: list[str]) -> None:
    found = {}
    for text in links:
        world = World.create(timeout_s=60, link=Link.parse(text) if text != REAL else None)
        found[text] = measured(world)
        rank = world.rank
        world.close()
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


def emulated() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = run_ranks(__file__, 2, *LINKS)["found"]
    return found


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """Make two network namespaces, each with one end of a cable that sends 1 Gbit/s."""
    made = [f"plx{number}" for number in range(2)]
    commands = [f"ip netns add {name}" for name in made]
    commands.append("ip link add plxa netns plx0 type veth peer name plxb netns plx1")
    for number, end in enumerate("ab"):
        inside = f"ip -n plx{number}"
        commands += [
            f"{inside} addr add 10.199.0.{number + 1}/24 dev plx{end}",
            f"{inside} link set plx{end} up",
            f"{inside} link set lo up",
            f"tc -n plx{number} qdisc add dev plx{end} root "
            "tbf rate 1gbit burst 64kb latency 100ms",
        ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def real(folder: Path) -> dict[str, dict[str, float]]:
    """Measure between namespaces; Open MPI starts rank 1 by a script that enters its namespace."""
    mpi = find_mpi(os.environ)
    agent = folder / "agent"
    agent.write_text(
        '#!/bin/sh\nshift\nexec ip netns exec plx1 unshare --uts sh -c "hostname plx1; $*"\n'
    )
    agent.chmod(0o755)
    program = [sys.executable, __file__, "rank", str(folder), REAL]
    launched = [
        *("ip", "netns", "exec", "plx0", "unshare", "--uts", "sh", "-c"),
        'hostname plx0; exec "$@"', "sh", str(mpi.mpiexec), "--allow-run-as-root",
        *("--bind-to", "none", "--prtemca", "plm_ssh_agent", str(agent)),
        *("--host", "10.199.0.1:1,10.199.0.2:1", "--mca", "btl", "self,tcp"),
        *("--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "10.199.0.0/24", "-n", "2"),
        *program,
    ]  # fmt: skip
    with namespaces():
        subprocess.run(launched, check=True, timeout=120)
    found: dict[str, dict[str, float]] = json.loads((folder / "found.json").read_text())
    return found


def model(text: str) -> tuple[float, float | None, float | None]:
    """Return latency, bandwidth and the seconds of an all-reduce, as asked for; None: not given."""
    if text == REAL:
        return 0.0, 125e6, SUMMED_BYTES / 125e6
    link = Link.parse(text)
    bandwidth = link.bandwidth_bytes_per_s
    summed_s = 2 * link.latency_s + SUMMED_BYTES / bandwidth if bandwidth else None
    return link.latency_s, bandwidth, summed_s


def main(with_real: bool) -> None:
    found = emulated()
    if with_real:
        with tempfile.TemporaryDirectory() as name:
            found |= real(Path(name))
    print(f"{'asked for, measured':34} {'latency ms':>16} {'Gbit/s':>15} {'all-reduce ms':>17}")
    for text, row in found.items():
        latency_s, bandwidth, summed_s = model(text)
        print(
            f"{text:34} {latency_s * 1e3:7.3f} {row['latency_s'] * 1e3:8.3f} "
            f"{(bandwidth or 0) * 8e-9:7.3f} {row['bandwidth_bytes_per_s'] * 8e-9:7.3f} "
            f"{(summed_s or 0) * 1e3:8.1f} {row['all_reduce_s'] * 1e3:8.1f}"
        )
    save(
        __file__,
        links=found,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), sys.argv[3:])
    else:
        main("--real" in sys.argv[1:])
