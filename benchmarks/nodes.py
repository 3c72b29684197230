"""Collectives between nodes against the wire, the MPI library's own and Gloo, on limited links.

    python benchmarks/nodes.py                         # all layouts and sizes at 1 Gbit/s, as root
    python benchmarks/nodes.py --rates 1gbit 10gbit    # and at 10 Gbit/s, as `tc` names them
    python benchmarks/nodes.py --quick                 # 2 nodes, 3 sizes, few calls: a minute
    python benchmarks/nodes.py --layouts 2x1 3x4 --sizes 1048576 --engines phalanx gloo

The nodes are virtual (tests/nodes/cluster.py): each has its own network, memory and processes, and
all share the cores of one machine. `tc tbf` limits the link of each both ways. First a plain TCP
stream each way at the same time measures the link. Then `phalanx bench collectives` measures each
layout, nodes x ranks on each, in one job per size, on its paths phalanx (ours, which chooses
its routes), mpi (the library's) and gloo.

Each node sends at least 2n(N-1)/N bytes in an all-reduce of n bytes on N nodes, and n(N-1)/N in a
reduce-scatter or an all-gather. The limit's token bucket (--bucket-kb) lets 128 KB of these pass at
once, so 64 KB have no limit; the rest takes at least as long as the link's measured bandwidth
allows. The table shows medians in ms, the share of the wire's limit that they reach (-: no limit),
and the times of the other paths as multiples of Phalanx's. If the measured link is slower than its
rate, the cores are the limit: they carry TCP as well. Raw values, medians, ratios, commit and
machine go to runs/benchmarks/nodes.json after each layout.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import phalanx
from harness import save
from phalanx.jobs.binding import INTEL_MPI_YIELDS, OPEN_MPI_YIELDS
from phalanx.jobs.command import mpi_job
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.installation import find_mpi
from phalanx.report.collectives import read_collectives

HERE, ROOT = Path(__file__).resolve().parent, Path(phalanx.__file__).parents[2]
LAYOUTS = ("2x1", "2x2", "2x4", "3x1", "3x2", "3x4")  # nodes x ranks on each
SIZES = (65_536, 262_144, 1_048_576, 10_485_760, 104_857_600)
ENGINES = ("phalanx", "mpi", "gloo")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
STREAM_S, PORT = 2.0, 5201
LAYOUT_TIMEOUT_S = 900
UNITS = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6}  # units of `tc`, in bytes per second

Seconds = dict[str, dict[str, dict[str, list[float]]]]  # times by collective, bytes, engine


def repeats_of(num_bytes: int, calls: int) -> int:
    """Return the number of measured calls, `calls` for short vectors."""
    return max(3, min(calls, 50_000_000 // num_bytes))


def nominal(rate: str) -> float:
    """Return the bytes per second of a rate such as 1gbit."""
    number = rate.rstrip("kmgbit")
    return float(number) * UNITS[rate[len(number) :]]


def wire_bytes(collective: str, num_bytes: int, num_nodes: int) -> float:
    """Return the bytes that a node must at least send and receive."""
    once = num_bytes * (num_nodes - 1) / num_nodes
    return 2 * once if collective == "all_reduce" else once


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
def limited_nodes(
    layouts: Sequence[str], rate: str, keep: Path, bucket_kb: int = 128
) -> Iterator[Any]:
    """Make enough nodes for all layouts, with links of this rate. keep: folder of the program."""
    from tests.nodes.cluster import virtual_nodes

    with (
        tempfile.TemporaryDirectory(prefix="nodes-", dir="/var/tmp") as name,
        virtual_nodes(
            max(int(layout.split("x")[0]) for layout in layouts),
            Path(name) / "state",
            keep=list(dict.fromkeys((Path(sys.prefix), ROOT, keep))),
            environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            rate=rate,
            bucket=f"{bucket_kb}kb",
        ) as cluster,
    ):
        yield cluster


def measure_link(cluster: Any) -> list[float]:
    """Return the bytes per second that each of two nodes receives while both send."""
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
    command = mpi_job(mpi, ranks, words, environ=environ)
    variables = {**environ, **command.environment}
    done = cluster.run("n0", list(command.words), environment=variables, timeout_s=limit_s)
    if done.returncode:
        sys.exit(f"{layout} failed:\n{done.stdout}")
    return json.loads(out.read_text())


def run_layout(cluster: Any, layout: str, args: argparse.Namespace) -> Seconds:
    """Run `phalanx bench collectives` on the nodes of a layout, once for each size."""
    num_nodes, local_ranks = (int(word) for word in layout.split("x"))
    hosts = ",".join(f"{name}:{local_ranks}" for name in cluster.nodes[:num_nodes])
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    if num_nodes * local_ranks > usable_cores():
        for name, value in (OPEN_MPI_YIELDS | INTEL_MPI_YIELDS).items():
            environ.setdefault(name, value)  # a node does not see the others
    seconds: Seconds = {name: {} for name in COLLECTIVES}
    for num_bytes in args.sizes:
        folder = cluster.shared / f"{layout}-{num_bytes}"
        words = [sys.executable, "-m", "phalanx", "bench", "collectives", "--no-preflight"]
        words += ["--hosts", hosts, "--ranks", str(num_nodes * local_ranks), "--loop", "1"]
        words += ["--collectives", *COLLECTIVES, "--paths", *args.engines]
        words += ["--sizes", str(num_bytes), "--repeats", str(repeats_of(num_bytes, args.calls))]
        words += ["--output", str(folder)]
        done = cluster.run("n0", words, environment=environ, timeout_s=LAYOUT_TIMEOUT_S)
        if done.returncode:
            sys.exit(f"{layout} failed:\n{done.stdout}")
        for row in read_collectives(folder).rows:
            by_size = seconds[row["collective"]].setdefault(str(num_bytes), {})
            by_size[row["path_option"]] = list(row["_times_s"])
    return seconds


def summary(
    layout: str, bandwidth: float, bucket_bytes: int, seconds: Seconds
) -> list[dict[str, Any]]:
    """Return rows per collective and size: medians, shares of the wire's limit, ratios to ours."""
    num_nodes, rows = int(layout.split("x")[0]), []
    for collective, by_size in seconds.items():
        for num_bytes, by_engine in by_size.items():
            limited = wire_bytes(collective, int(num_bytes), num_nodes) - bucket_bytes
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
    """Measure all layouts at one rate, and add each to `found`."""
    with limited_nodes(args.layouts, rate, HERE, args.bucket_kb) as cluster:
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
            rows = summary(layout, bandwidth, 1024 * args.bucket_kb, here["seconds"][layout])
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
    parser.add_argument("--bucket-kb", type=int, default=128, help="KB that pass at once")
    parser.add_argument("--quick", action="store_true", help="2x1, 2x2; 64 KB, 1, 10 MB; 5 calls")
    args = parser.parse_args(words)
    if args.quick:
        args.layouts, args.sizes, args.calls = ["2x1", "2x2"], [65_536, 1_048_576, 10_485_760], 5
    return args


if __name__ == "__main__":
    if sys.argv[1:2] == ["stream"]:
        stream_main(sys.argv[2] if sys.argv[2:] else None)
    else:
        main(parse(sys.argv[1:]))
