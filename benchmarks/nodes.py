"""Collectives between nodes against the wire, the MPI library's own and Gloo, on limited links.

    python benchmarks/nodes.py                         # all layouts and sizes at 1 Gbit/s, as root
    python benchmarks/nodes.py --rates 1gbit 10gbit    # and at 10 Gbit/s, as `tc` names them
    python benchmarks/nodes.py --quick                 # 2 nodes, 3 sizes, few calls: a minute
    python benchmarks/nodes.py --layouts 2x1 3x4 --sizes 1048576 --engines phalanx gloo

The nodes are virtual (tests/nodes/cluster.py): own network, memory and processes on one machine,
whose cores carry all of them; the link of each is limited, both ways, by `tc tbf`. First the link
is measured: a plain TCP stream each way at the same time. Then each layout, nodes x ranks on each,
is one job in which the engines take turns at every size:

    phalanx   our collectives, as they choose their route (`lanes`, `direct`)
    library   MPI's own: Allreduce, Reduce_scatter_block, Allgather
    gloo      torch.distributed with backend gloo

All ranks sleep until an agreed moment; a call lasts from the last one's beginning to the last one's
end. Per node an all-reduce of n bytes on N nodes cannot send less than 2n(N-1)/N, a reduce-scatter
or an all-gather n(N-1)/N. Of these 128 KB pass at once, the limit's token bucket; the rest takes at
least as long as the link's measured bandwidth says. The table shows medians in ms, the share of the
wire's limit that they reach (-: no limit), and how many times as long as Phalanx the others take.
Where the link as measured is slower than its rate, the cores are the limit: they carry TCP too.
Raw values, medians, ratios, commit and machine go to runs/benchmarks/nodes.json, after each
layout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import phalanx
from harness import save
from phalanx.comm.buffer import Buffer
from phalanx.comm.layout import share_of
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.launch.binding import INTEL_MPI_YIELDS, OPEN_MPI_YIELDS
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi

HERE, ROOT = Path(__file__).resolve().parent, Path(phalanx.__file__).parents[2]
LAYOUTS = ("2x1", "2x2", "2x4", "3x1", "3x2", "3x4")  # nodes x ranks on each
SIZES = (65_536, 262_144, 1_048_576, 10_485_760, 104_857_600)
ENGINES = ("phalanx", "library", "gloo")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
STREAM_S, PORT, GLOO_PORT = 2.0, 5201, 29571
LAYOUT_TIMEOUT_S = 900
BURST_BYTES = 128 * 1024  # of the limit's token bucket
UNITS = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6}  # of `tc`, in bytes per second
START_IN_S = 3e-3

Seconds = dict[str, dict[str, dict[str, list[float]]]]  # by collective, bytes, engine
Calls = dict[str, Callable[[], None]]


def repeats_of(num_bytes: int, calls: int) -> int:
    """Calls that are measured, `calls` of short vectors; one more before them is not."""
    return max(3, min(calls, 50_000_000 // num_bytes))


def nominal(rate: str) -> float:
    """Bytes per second of a rate such as 1gbit."""
    number = rate.rstrip("kmgbit")
    return float(number) * UNITS[rate[len(number) :]]


def wire_bytes(collective: str, num_bytes: int, num_nodes: int) -> float:
    """Bytes that a node must send at least, and receive."""
    once = num_bytes * (num_nodes - 1) / num_nodes
    return 2 * once if collective == "all_reduce" else once


class Vectors:
    """The memory of one size, and the calls of each engine on it."""

    def __init__(self, world: World, num_bytes: int, engines: list[str]) -> None:
        self.rank, self.size, self.engines = world.rank, world.size, engines
        self.count = num_bytes // 4 // world.size * world.size
        self.whole = np.empty(self.count, np.float32)
        self.share = np.empty(self.count // world.size, np.float32)
        self._world = world

    def calls(self, collective: str) -> Calls:
        makers = {"phalanx": self._phalanx, "library": self._library, "gloo": self._gloo}
        return {name: makers[name](collective) for name in self.engines}

    def fill(self) -> None:
        """Whole numbers, whose sums are exact in every order."""
        self.whole.fill(self.rank + 1)
        self.share.fill(self.rank + 1)

    def check(self, collective: str, engine: str) -> None:
        total = self.size * (self.size + 1) / 2
        if collective == "all_gather":
            right = np.array_equal(self.whole[:: self.share.size], np.arange(1, self.size + 1))
        else:
            found = self.whole if collective == "all_reduce" else self.share
            right = bool((found == total).all())
        assert right, f"{collective} of {engine} is wrong on rank {self.rank}"

    def _phalanx(self, collective: str) -> Callable[[], None]:
        group, whole, own = self._world.group, Buffer.of(self.whole), Buffer.of(self.share)
        cuts = [share_of(rank, self.size, self.count) for rank in range(self.size)]
        parts = [whole.part(cut.start, cut.stop) for cut in cuts]
        if collective == "all_reduce":
            return lambda: group.all_reduce(whole)
        if collective == "reduce_scatter":
            return lambda: group.reduce_scatter(own, parts)
        return lambda: group.all_gather(parts, own)

    def _library(self, collective: str) -> Callable[[], None]:
        from mpi4py import MPI

        world, whole, share = MPI.COMM_WORLD, self.whole, self.share
        if collective == "all_reduce":
            return lambda: world.Allreduce(MPI.IN_PLACE, whole)
        if collective == "reduce_scatter":
            return lambda: world.Reduce_scatter_block(whole, share)
        return lambda: world.Allgather(share, whole)

    def _gloo(self, collective: str) -> Callable[[], None]:
        import torch
        import torch.distributed as dist

        whole, share = torch.from_numpy(self.whole), torch.from_numpy(self.share)
        if collective == "all_reduce":
            return lambda: dist.all_reduce(whole)
        if collective == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(share, whole)
        return lambda: dist.all_gather_into_tensor(whole, share)


def join_gloo(world: World, address: str) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    place = f"tcp://{address}:{GLOO_PORT}"
    dist.init_process_group("gloo", init_method=place, rank=world.rank, world_size=world.size)


def timed(world: World, call: Callable[[], None]) -> float:
    """Seconds from the last rank's beginning to the last one's end."""
    world.barrier()
    start = np.array([time.perf_counter() + START_IN_S])  # one clock: all nodes are one machine
    world.broadcast(start)
    time.sleep(max(0.0, start[0] - time.perf_counter()))
    began = time.perf_counter()
    call()
    ended = time.perf_counter()
    times = world.gather(np.array([began, ended]))
    return 0.0 if times is None else float(times[:, 1].max() - times[:, 0].max())


def rank_main(out: Path, address: str, sizes: list[int], engines: list[str], calls: int) -> None:
    world = World.create(timeout_s=120)
    if world.size > usable_cores():  # those of the machine, which a node takes for its own
        world.group.set_wait_policy(WaitPolicy.for_node(world.size, usable_cores()))
    if "gloo" in engines:
        join_gloo(world, address)
    seconds: Seconds = {}
    for num_bytes in sizes:
        vectors = Vectors(world, num_bytes, engines)
        for collective in COLLECTIVES:
            by_engine = list(vectors.calls(collective).items())
            times: dict[str, list[float]] = {engine: [] for engine in engines}
            for repeat in range(1 + repeats_of(num_bytes, calls)):
                by_engine = by_engine[1:] + by_engine[:1]  # none is always behind the same
                for engine, call in by_engine:
                    vectors.fill()
                    took_s = timed(world, call)
                    if repeat:
                        times[engine].append(took_s)
                    else:
                        vectors.check(collective, engine)
            seconds.setdefault(collective, {})[str(num_bytes)] = times
    if world.rank == 0:
        out.write_text(json.dumps(seconds))
    world.close()


def stream_main(server: str | None) -> None:
    """Send and receive at the same time; print the bytes received per second."""
    if server is None:
        listening = socket.create_server(("0.0.0.0", PORT))
        listening.settimeout(20)
        connection, _ = listening.accept()
    else:
        connection = connected(server)
    until_s = time.monotonic() + STREAM_S

    def send() -> None:
        data = bytes(1 << 20)
        while time.monotonic() < until_s:
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    memory, total, began = bytearray(1 << 20), 0, time.monotonic()
    while taken := connection.recv_into(memory):
        total += taken
    print(total / (time.monotonic() - began), flush=True)
    sender.join()


def connected(server: str) -> socket.socket:
    until_s = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((server, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def limited_nodes(layouts: Sequence[str], rate: str, keep: Path) -> Iterator[Any]:
    """Nodes enough for all layouts, whose links have this rate. keep: folder of the program."""
    from tests.nodes.cluster import virtual_nodes

    with (
        tempfile.TemporaryDirectory(prefix="nodes-", dir="/var/tmp") as name,
        virtual_nodes(
            max(int(layout.split("x")[0]) for layout in layouts),
            Path(name) / "state",
            keep=list(dict.fromkeys((Path(sys.prefix), ROOT, keep))),
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            rate=rate,
        ) as cluster,
    ):
        yield cluster


def measure_link(cluster: Any) -> list[float]:
    """Bytes per second that each of two nodes receives while both send."""
    words, log = [sys.executable, __file__, "stream"], cluster.shared / "stream.log"
    with cluster.start("n0", words, log) as server:
        client = cluster.run("n1", [*words, cluster.address("n0")])
        server.wait(timeout=30)
    texts = (log.read_text(), client.stdout)
    try:
        return [float(text) for text in texts]
    except ValueError:
        sys.exit("the link could not be measured:\n" + "\n".join(texts))


def run_ranks(
    cluster: Any, layout: str, words: list[str], environ: dict[str, str], out: Path, limit_s: float
) -> Any:
    """Run a program on the ranks of a layout, and return what it has written to `out`."""
    ranks, mpi = math.prod(map(int, layout.split("x"))), find_mpi(os.environ)
    command = mpi_job(mpi, ranks, words, cores=usable_cores(), environ=environ)
    variables = {**environ, **command.environment}
    done = cluster.run("n0", list(command.words), environment=variables, timeout_s=limit_s)
    if done.returncode:
        sys.exit(f"{layout} failed:\n{done.stdout}")
    return json.loads(out.read_text())


def run_layout(cluster: Any, layout: str, args: argparse.Namespace) -> Seconds:
    num_nodes, local_ranks = (int(word) for word in layout.split("x"))
    hosts = ",".join(f"{name}:{local_ranks}" for name in cluster.nodes[:num_nodes])
    environ = {**os.environ, "PHALANX_HOSTS": hosts, "OMP_NUM_THREADS": "1"}
    if num_nodes * local_ranks > usable_cores():
        for name, value in (OPEN_MPI_YIELDS | INTEL_MPI_YIELDS).items():
            environ.setdefault(name, value)  # a node does not see the others
    out = cluster.shared / f"{layout}.json"
    program = [sys.executable, __file__, "rank", str(out), cluster.address("n0")]
    program += [",".join(map(str, args.sizes)), ",".join(args.engines), str(args.calls)]
    found: Seconds = run_ranks(cluster, layout, program, environ, out, LAYOUT_TIMEOUT_S)
    return found


def summary(layout: str, bandwidth: float, seconds: Seconds) -> list[dict[str, Any]]:
    """A row a collective and size: medians, shares of the wire's limit, and ratios to Phalanx."""
    num_nodes, rows = int(layout.split("x")[0]), []
    for collective, by_size in seconds.items():
        for num_bytes, by_engine in by_size.items():
            limited = wire_bytes(collective, int(num_bytes), num_nodes) - BURST_BYTES
            medians = {engine: statistics.median(times) for engine, times in by_engine.items()}
            ours = medians.get("phalanx")
            rows.append(
                {
                    "layout": layout,
                    "collective": collective,
                    "bytes": int(num_bytes),
                    "median_s": medians,
                    "share": {
                        engine: limited / bandwidth / median if limited > 0 else None
                        for engine, median in medians.items()
                    },
                    "ratio": {
                        engine: median / ours
                        for engine, median in medians.items()
                        if ours is not None and engine != "phalanx"
                    },
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        cells = ""
        for engine, median in row["median_s"].items():
            share = row["share"][engine]
            cells += f"{1e3 * median:12.2f}" + ("    - " if share is None else f"{share:6.0%}")
        cells += "".join(f"{ratio:10.2f} x" for ratio in row["ratio"].values())
        words = f"{row['layout']:6}{row['collective']:16}{row['bytes'] / 2**20:8.4g} MB"
        print(words + cells, flush=True)


def measure_rate(rate: str, args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Measure all layouts at one rate; `found` grows by each."""
    with limited_nodes(args.layouts, rate, HERE) as cluster:
        before = measure_link(cluster)
        here: dict[str, Any] = {"link_bytes_per_s": [before], "seconds": {}, "rows": []}
        found["rates"][rate] = here
        bandwidth = statistics.mean(before)
        print(f"\n{rate}: {', '.join(f'{value / 1e6:.1f}' for value in before)} MB/s each way")
        if bandwidth < 0.9 * nominal(rate):
            print(f"of {nominal(rate) / 1e6:.0f}: {usable_cores()} cores move no more by TCP")
        ratios = "".join(f"{engine:>12}" for engine in args.engines if engine != "phalanx")
        names = "".join(f"{engine:>18}" for engine in args.engines)
        print(f"{'ms, of the wire; times as long':33}{names}{ratios}", flush=True)
        for layout in args.layouts:
            here["seconds"][layout] = run_layout(cluster, layout, args)
            rows = summary(layout, bandwidth, here["seconds"][layout])
            table(rows)
            here["rows"] += rows
            save(__file__, **found)
        here["link_bytes_per_s"].append(measure_link(cluster))
        save(__file__, **found)


def main(args: argparse.Namespace) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.nodes.cluster import missing

    if reason := missing():
        print(f"not measured: {reason}")
        return
    found: dict[str, Any] = {"rates": {}}
    for rate in args.rates:
        measure_rate(rate, args, found)


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Collectives between virtual nodes.")
    parser.add_argument("--rates", nargs="+", default=["1gbit"])
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--calls", type=int, default=21, help="of short vectors; 3 of long ones")
    parser.add_argument("--quick", action="store_true", help="2x1, 2x2; 64 KB, 1, 10 MB; 5 calls")
    args = parser.parse_args(words)
    if args.quick:
        args.layouts, args.sizes, args.calls = ["2x1", "2x2"], [65_536, 1_048_576, 10_485_760], 5
    return args


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        out, address, sizes, engines, calls = sys.argv[2:]
        num_bytes = [int(n) for n in sizes.split(",")]
        rank_main(Path(out), address, num_bytes, engines.split(","), int(calls))
    elif sys.argv[1:2] == ["stream"]:
        stream_main(sys.argv[2] if sys.argv[2:] else None)
    else:
        main(parse(sys.argv[1:]))
