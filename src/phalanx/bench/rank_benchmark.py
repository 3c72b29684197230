"""The benchmark on one rank: hardware limits first, then every case on every path."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from phalanx.bench.call_schedule import Case, cases, schedule, turns
from phalanx.bench.config import CollectivesConfig
from phalanx.bench.hardware_limits import measure_memory, measure_round_trips, working_sets
from phalanx.bench.measure import PreemptionCounter, prepare, time_calls
from phalanx.bench.paths.make import open_paths
from phalanx.bench.paths.path import BenchParams, BenchPath, CaseBuffers
from phalanx.bench.pattern import Pattern
from phalanx.bench.ranks import RankRecords
from phalanx.comm.dtypes import DTYPES
from phalanx.comm.join_world import join_world
from phalanx.comm.world import World
from phalanx.records.collectives import (
    CallsEvent,
    JoinedEvent,
    Kernel,
    MeasuredEvent,
    PathStateEvent,
    ProgressEvent,
    RoundTripsEvent,
    TrafficEvent,
)
from phalanx.records.environment import process_age_s
from phalanx.records.processor_time import peak_memory_bytes

KERNELS: tuple[Kernel, ...] = ("copy", "add")
WARM_UP_CALLS = 2  # the first touches the path's buffers, the second estimates the cost


def measure_on_rank(config: CollectivesConfig, folder: Path) -> None:
    """Measure, with records in `folder`."""
    world = join_world(timeout_s=config.timeout_s)
    records = RankRecords(folder, world.rank)
    benchmark = CollectiveBenchmark(config, world, records)
    benchmark.run()
    world.close()
    records.add(
        MeasuredEvent,
        wrong=benchmark.wrong,
        peak_memory_bytes=peak_memory_bytes(),
        watched_s=round(benchmark.preemption.watched_s, 6),
        preempted=benchmark.preemption.preempted,
    )
    records.close()


class CollectiveBenchmark:
    """The benchmark on one rank."""

    def __init__(self, config: CollectivesConfig, world: World, records: RankRecords) -> None:
        self._config, self._world, self._group = config, world, world.group
        self._params = BenchParams(
            rank=world.rank,
            ranks=world.size,
            dtype=DTYPES[config.dtype],
            op=config.reduce_op,
            device=config.device,
        )
        self._barrier: Callable[[], None] = (world.group.shm or world.group).barrier
        """The cheapest barrier of this machine."""
        group = world.group
        self._pair = group if group.size == 2 else None
        """Ranks 0 and 1."""
        if group.rank < 2 < group.size:
            self._pair = group.subgroup((0, 1), name="bench-pair")
        self._records, self._declared = records, set[tuple[str, str]]()
        self.wrong, self.preemption = 0, PreemptionCounter()

    def run(self) -> None:
        """Measure all cases. Collective."""
        config, world = self._config, self._world
        wanted = cases(
            config.chosen_collectives,
            config.sizes_bytes,
            itemsize=self._params.dtype.itemsize,
            ranks=self._params.ranks,
        )
        largest_bytes, total = max(case.num_bytes for case in wanted), len(wanted) + 1
        with open_paths(config, world, self._params) as paths:
            self._records.add(
                JoinedEvent,
                rank=world.rank,
                hostname=world.hostname,
                process_id=os.getpid(),
                library=world.library,
                startup_s=process_age_s(),
            )
            self._records.flush()
            gc.disable()  # a collection during a call would add to its time
            self._announce(0, total, "memory and flags of this machine")
            self._measure_machine(largest_bytes)
            # Rank 0 decides, since nodes may differ in cores.
            calls_a_time = world.share(config.calls_a_time(world.local_size, world.settings.cores))
            for number, case in enumerate(wanted, 1):
                self._announce(number, total, f"{case.collective} {case.num_bytes}")
                self._measure_case(case, paths, config.seconds / len(wanted), calls_a_time)
            # Again, since other programs may have disturbed the first time.
            self._measure_machine(largest_bytes)
            gc.enable()
            self._group.barrier()
        if self._pair is not None and self._pair is not self._group:
            self._pair.close()

    def _announce(self, done: int, total: int, doing: str) -> None:
        self._records.announce(ProgressEvent, done, total, doing)

    def _measure_machine(self, largest_bytes: int) -> None:
        if self._world.size > 1:
            self._measure_round_trips()
        for working_set in working_sets(largest_bytes):
            for name in KERNELS:
                self._records.add(
                    TrafficEvent,
                    kernel=name,
                    working_set_bytes=working_set,
                    traffic_bytes=working_set,
                    times_s=rounded(measure_memory(name, working_set, self._group, self._barrier)),
                )

    def _measure_round_trips(self) -> None:
        """Measure the flags of ranks 0 and 1, where they share memory. Collective."""
        if self._pair is not None and self._pair.shm is not None:
            self._records.add(
                RoundTripsEvent,
                means="barriers of ranks 0 and 1 in shared memory",
                times_s=rounded(measure_round_trips(self._pair.shm.barrier)),
            )
        self._group.barrier()

    def _measure_case(
        self, case: Case, paths: Sequence[BenchPath], budget_s: float, calls_a_time: int
    ) -> None:
        """Measure a case on all paths in turn. calls_a_time: timed together. Collective."""
        params, group = self._params, self._group
        private = CaseBuffers.make(case, params)
        prepared, unsupported = prepare(case, paths, group, private)
        self._declare(case, paths, unsupported)
        pattern = Pattern(
            case, rank=params.rank, ranks=params.ranks, dtype=params.dtype, op=params.op
        )

        def time_path(name: str, calls: int) -> tuple[list[float], int]:
            return time_calls(prepared[name], pattern, self._barrier, range(calls), calls_a_time)

        costs_s = {}
        for name in prepared:
            began = time.perf_counter()
            time_path(name, WARM_UP_CALLS)
            costs_s[name] = (time.perf_counter() - began) / WARM_UP_CALLS
        # Rank 0's clock decides, so that all make the same number of calls.
        chosen = group.share(schedule(costs_s, budget_s=budget_s, repeats=self._config.repeats))
        for number, name in turns(list(prepared), chosen.rounds):
            with self.preemption.watch(name):
                times_s, wrong = time_path(name, chosen.calls[name] + 1)
            self.wrong += wrong
            self._records.add(
                CallsEvent,
                collective=case.collective,
                path=name,
                count=case.count,
                bytes=case.num_bytes,
                round=number,
                calls_a_time=calls_a_time,
                # The first call of a turn is dropped: the path before it has filled the cache.
                times_s=rounded(times_s[1:]),
                wrong=wrong,
            )
        group.barrier()

    def _declare(self, case: Case, paths: Sequence[BenchPath], unsupported: dict[str, str]) -> None:
        """Record once per collective, and at changes, whether each path supports it; on rank 0."""
        for path in paths:
            obstacle = unsupported.get(path.name)
            key = path.name, f"{case.collective} {obstacle}"
            if not self._world.rank and key not in self._declared:
                self._declared.add(key)
                self._records.add(
                    PathStateEvent,
                    path=path.name,
                    label=path.label,
                    collective=case.collective,
                    obstacle=obstacle,
                )


def rounded(times_s: Iterable[float]) -> list[float]:
    """Round to 0.1 ns, the resolution of the clock, to save space."""
    return [round(seconds, 10) for seconds in times_s]
