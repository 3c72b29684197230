"""Training over nodes with limited links, and its prediction by an emulated link.

    python benchmarks/training_over_nodes.py                    # 1 Gbit/s, as root; 15 minutes
    python benchmarks/training_over_nodes.py --quick            # a small model: does it run?
    python benchmarks/training_over_nodes.py --layouts 2x1 --rates 100mbit --engines mpi shared

The nodes are virtual, as in benchmarks/nodes.py, which also measures the link here, and each has
its part of the machine's cores. Adam trains an MLP, with one thread per rank:

    ddp mpi, ddp gloo      PyTorch's DDP with its defaults, on backend mpi and on Gloo
    fsdp2 mpi, fsdp2 gloo  PyTorch's FSDP2, one unit per layer, resharded after the forward pass
    mpi, overlap           ours, gradients summed after the backward pass or while it runs
    shared                 ours, parameters and optimizer state once per node
    fp16, int8, powersgd, topk   `overlap` with gradients compressed

A layout, nodes x ranks on each, is one job in which the engines take turns. In each round an engine
is made, takes two steps to warm up and then those that count, which are timed on rank 0.

Then the same ranks train on one node over an emulated link (`--link`) of the measured bandwidth,
with all engines but those on Gloo, which it does not slow. The emulation counts every rank as a
node, so several ranks on a node become as many nodes of one. The last column is the emulated step's
time divided by the real one's. Raw times, commit and machine go to
runs/benchmarks/training_over_nodes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import phalanx
from harness import save
from phalanx.comm.link import Link
from phalanx.comm.world import World
from phalanx.gradients.compression.make import make_compressor
from phalanx.gradients.make_reducer import AllReduce
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.detect import detect
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import Batch
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import Backend, WorldGroup
from phalanx.run.memory import keep_freed_memory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.parallel.stepping import make_step

HERE, ROOT = Path(__file__).resolve().parent, Path(phalanx.__file__).parents[2]
LAYOUTS = ("2x1", "2x2")
COMPRESSORS = ("fp16", "int8", "powersgd", "topk")
ENGINES = (
    *("ddp mpi", "ddp gloo", "fsdp2 mpi", "fsdp2 gloo"),
    *("mpi", "overlap", "shared", *COMPRESSORS),
)
CLASSES, WARM_UP, TIMEOUT_S = 10, 2, 1800
ADAM = OptimizerConfig(name="adam", learning_rate=1e-3)

Seconds = dict[str, list[list[float]]]  # times by engine, round, step


class Setting(NamedTuple):
    """The training: a model of `layers` layers of `width` x `width`, `samples` per rank."""

    width: int = 1024
    layers: int = 10
    samples: int = 32
    rounds: int = 3
    steps: int = 5


def make_model(setting: Setting) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(setting.layers):
        layers += [nn.Linear(setting.width, setting.width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(setting.width, CLASSES))


def make_batch(setting: Setting, rank: int, size: int) -> Batch:
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.rand(setting.samples, setting.width, generator=generator)
    targets = torch.randint(CLASSES, (setting.samples,), generator=generator)
    return Batch(inputs, targets, setting.samples, size * setting.samples, 0)


class Engine(NamedTuple):
    step: Callable[[], object]
    close: Callable[[], None]
    barrier: Callable[[], None]
    process_group: object = None
    """Group to keep until the end: one of Gloo that is freed right after its last sum waits, with
    the GIL, for its thread, which waits for the GIL."""


def make_engine(name: str, setting: Setting, link: Link | None) -> Engine:
    """Collective."""
    world = World.create(timeout_s=120, link=link)
    batch = make_batch(setting, world.rank, world.size)
    if " " in name:
        kind, backend = name.split()
        return stock_engine(kind, "mpi" if backend == "mpi" else "gloo", world, setting, batch)
    strategy: Strategy
    if name == "shared":
        strategy = Shared(world)
    else:
        compressor = make_compressor(name) if name in COMPRESSORS else None
        summation = AllReduce(overlap="off" if name == "mpi" else "on", compressor=compressor)
        strategy = Replicas(WorldGroup(world), summation=summation)
    strategy.prepare(make_model(setting), ADAM)
    return Engine(lambda: make_step(strategy, batch), strategy.close, strategy.group.barrier)


def stock_engine(
    kind: str, backend: Backend, world: World, setting: Setting, batch: Batch
) -> Engine:
    group, model = WorldGroup(world, torch_backend=backend), make_model(setting)
    module: nn.Module
    if kind == "ddp":
        module = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (world.size,))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        module = model
    process_group = dist.group.WORLD
    optimizer = torch.optim.Adam(module.parameters(), lr=ADAM.learning_rate, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss: Tensor = F.cross_entropy(module(batch.inputs), batch.targets)
        loss.backward()
        optimizer.step()

    return Engine(step, group.close, group.barrier, process_group)


def timed_turn(engine: Engine, num_steps: int) -> list[float]:
    for _ in range(WARM_UP):
        engine.step()
    engine.barrier()
    times = [time.perf_counter()]
    for _ in range(num_steps):
        engine.step()
        times.append(time.perf_counter())
    engine.barrier()
    engine.close()
    return [after - before for before, after in pairwise(times)]


def rank_main(out: Path, words: list[str]) -> None:
    """Train. words: number of nodes, ranks on each, engines, setting, link or nothing."""
    num_nodes, local_ranks = int(words[0]), int(words[1])
    engines, setting = json.loads(words[2]), Setting(*json.loads(words[3]))
    link = Link.parse(words[4]) if words[4] else None
    launched = detect(os.environ)
    assert launched is not None
    cores = sorted(os.sched_getaffinity(0))
    node = launched.rank // local_ranks  # an emulated one as well
    os.sched_setaffinity(0, cores[node::num_nodes] or {cores[node % len(cores)]})
    torch.set_num_threads(1)
    keep_freed_memory()
    seconds: Seconds = {engine: [] for engine in engines}
    kept: list[object] = []
    for _ in range(setting.rounds):
        for name in engines:
            engine = make_engine(name, setting, link)
            kept.append(engine.process_group)
            seconds[name].append(timed_turn(engine, setting.steps))
            del engine
    if launched.rank == 0:
        out.write_text(json.dumps(seconds))


def run_job(
    cluster: Any, layout: str, setting: Setting, engines: list[str], link: str | None
) -> Seconds:
    """Run a layout. link: None: over the nodes; else emulated, all ranks on one node."""
    from nodes import run_ranks

    num_nodes, local_ranks = (int(word) for word in layout.split("x"))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    if link is None:
        hosts = [f"{name}:{local_ranks}" for name in cluster.nodes[:num_nodes]]
        environ["PHALANX_HOSTS"] = ",".join(hosts)
    if num_nodes * local_ranks > usable_cores():
        environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")  # a node does not see the others
    out = cluster.shared / "seconds.json"
    program = [sys.executable, __file__, "rank", str(out), str(num_nodes), str(local_ranks)]
    program += [json.dumps(engines), json.dumps(setting), link or ""]
    found: Seconds = run_ranks(cluster, layout, program, environ, out, TIMEOUT_S)
    out.unlink()
    return found


def median(rounds: list[list[float]]) -> float:
    return statistics.median(step for steps in rounds for step in steps)


def report(layout: str, real: Seconds, emulated: Seconds) -> None:
    """Print steps per second, and their range over the rounds."""
    for engine, rounds in real.items():
        rates = sorted(1 / statistics.median(steps) for steps in rounds)
        cells = f"{1 / median(rounds):9.2f}  ({rates[0]:.2f} … {rates[-1]:.2f})"
        line = f"{layout:6}{engine:12}{cells:28}{1e3 * median(rounds):9.1f}"
        if engine in emulated:
            emulated_s = median(emulated[engine])
            line += f"{1e3 * emulated_s:12.1f}{emulated_s / median(rounds):8.2f}"
        print(line, flush=True)


def main(args: argparse.Namespace) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.nodes.cluster import missing

    from nodes import limited_nodes, measure_link

    if reason := missing():
        print(f"not measured: {reason}")
        return
    setting, rates = args.setting, {}
    imitable = [engine for engine in args.engines if not engine.endswith("gloo")]
    for rate in args.rates:
        with limited_nodes(args.layouts, rate, HERE) as cluster:
            before = measure_link(cluster)
            link = f"{8e-9 * statistics.mean(before):.4f}Gbit/s"
            num_bytes = sum(parameter.nbytes for parameter in make_model(setting).parameters())
            print(f"\n{rate}, measured {link}; gradients of {num_bytes / 1e6:.1f} MB")
            print(f"{'':18}{'steps a second':28}{'ms a step':>9}{'emulated':>12}{'ratio':>8}")
            found = {}
            for layout in args.layouts:
                real = run_job(cluster, layout, setting, args.engines, None)
                emulated = run_job(cluster, layout, setting, imitable, link) if imitable else {}
                report(layout, real, emulated)
                found[layout] = {"real": real, "emulated": emulated}
            after = measure_link(cluster)
        rates[rate] = {"link_bytes_per_s": [before, after], "emulated": link, "seconds": found}
    save(
        __file__,
        setting=setting._asdict(),
        gradient_bytes=num_bytes,
        rates=rates,
    )


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training over virtual nodes.")
    parser.add_argument("--rates", nargs="+", default=["1gbit"])
    parser.add_argument("--layouts", nargs="+")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--quick", action="store_true", help="2x1, a small model, one round")
    args = parser.parse_args(words)
    args.setting = Setting(128, 3, 8, 1, 2) if args.quick else Setting()
    args.layouts = args.layouts or (["2x1"] if args.quick else list(LAYOUTS))
    return args


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), sys.argv[3:])
    else:
        main(parse(sys.argv[1:]))
