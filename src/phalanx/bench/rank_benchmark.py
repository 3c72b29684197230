"""The benchmark on one rank: hardware limits first, then every case on every path."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from pathlib import Path

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.hardware_limits import measure_memory, measure_round_trips, working_sets
from phalanx.bench.measure import Budget, PreemptionCounter, StartBarrier, measure, prepare
from phalanx.bench.paths.make import BenchPaths
from phalanx.bench.paths.path import BenchParams, CaseBuffers
from phalanx.bench.plan import Case, cases
from phalanx.comm.dtypes import DTYPES
from phalanx.comm.join_world import join_world
from phalanx.comm.world import World
from phalanx.jobs.detect import Launched
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
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.processor_time import peak_memory_bytes

KERNELS: tuple[Kernel, ...] = ("copy", "add")


def measure_on_rank(config: CollectivesConfig, folder: Path, launched: Launched | None) -> None:
    """Measure, with records in `folder`."""
    world = join_world(
        timeout_s=config.timeout_s,
        num_started=launched.world_size if launched else None,
        launcher=launched.launcher if launched else "the launcher",
    )
    benchmark = CollectiveBenchmark(config, folder, world)
    benchmark.run()
    world.close()
    benchmark.close()


class CollectiveBenchmark:
    """The benchmark on one rank. `close` completes its records."""

    def __init__(self, config: CollectivesConfig, folder: Path, world: World) -> None:
        self._config, self._world, self._group = config, world, world.group
        self._params = BenchParams(
            rank=world.rank, ranks=world.size, dtype=DTYPES[config.dtype], op=config.reduce_op
        )
        self._start_barrier = StartBarrier(world.group)
        self._began = time.monotonic()
        self._writer = EventWriter(rank_file(folder, world.rank))
        self._wrong = 0
        self._preemption = PreemptionCounter()
        self._declared: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Measure all cases. Collective."""
        planned = cases(
            self._config.chosen_collectives,
            self._config.sizes_bytes,
            itemsize=self._params.dtype.itemsize,
            ranks=self._params.ranks,
        )
        paths = BenchPaths(self._config, self._world, self._params)
        self._join()
        gc.disable()  # a collection during a call would add to its time
        largest_bytes = max(case.num_bytes for case in planned)
        self._progress(0, len(planned) + 1, None)
        self._measure_machine(largest_bytes)
        world = self._world
        budget = Budget(
            seconds=self._config.seconds / len(planned),
            repeats=self._config.repeats,
            # From rank 0, since nodes may differ in cores.
            calls_a_time=world.share(
                self._config.calls_a_time(world.local_size, world.settings.cores)
            ),
        )
        for number, case in enumerate(planned, 1):
            self._progress(number, len(planned) + 1, case)
            self._measure_case(case, paths, budget)
        # Again, since other programs may have disturbed the first time.
        self._measure_machine(largest_bytes)
        gc.enable()
        self._group.barrier()
        paths.close()
        self._start_barrier.close()

    def close(self) -> None:
        self._writer.add(
            MeasuredEvent(
                at_s=self._now(),
                wrong=self._wrong,
                peak_memory_bytes=peak_memory_bytes(),
                watched_s=round(self._preemption.watched_s, 6),
                preempted=self._preemption.preempted,
            )
        )
        self._writer.close()

    def _join(self) -> None:
        self._writer.add(
            JoinedEvent(
                at_s=self._now(),
                rank=self._world.rank,
                hostname=self._world.hostname,
                process_id=os.getpid(),
                library=self._world.library,
                startup_s=process_age_s(),
            )
        )
        self._writer.flush()

    def _measure_machine(self, largest_bytes: int) -> None:
        if self._world.size > 1:
            self._measure_round_trips()
        for working_set in working_sets(largest_bytes):
            for name in KERNELS:
                times_s = list(
                    measure_memory(name, working_set, self._group, self._start_barrier.barrier)
                )
                self._writer.add(
                    TrafficEvent(
                        at_s=self._now(),
                        kernel=name,
                        working_set_bytes=working_set,
                        traffic_bytes=working_set,
                        times_s=rounded(times_s),
                    )
                )

    def _measure_round_trips(self) -> None:
        barrier = self._start_barrier.pair_barrier() if self._world.rank < 2 else None
        if barrier:
            times_s = list(measure_round_trips(barrier))
            self._writer.add(
                RoundTripsEvent(
                    at_s=self._now(),
                    means="barriers of ranks 0 and 1 in shared memory",
                    times_s=rounded(times_s),
                )
            )
        self._group.barrier()

    def _measure_case(self, case: Case, paths: BenchPaths, budget: Budget) -> None:
        private = CaseBuffers.private(case, self._params)
        prepared, unsupported = prepare(case, paths.all, self._group, private)
        self._declare(case, paths, unsupported)
        start_barrier = self._start_barrier
        for turn in measure(
            case,
            prepared,
            self._group,
            start_barrier.barrier,
            self._params,
            budget,
            self._preemption,
        ):
            self._wrong += turn.wrong
            self._writer.add(
                CallsEvent(
                    at_s=self._now(),
                    collective=case.collective,
                    path=turn.path,
                    count=case.count,
                    bytes=case.num_bytes,
                    round=turn.round,
                    calls_a_time=budget.calls_a_time,
                    times_s=rounded(turn.times_s),
                    wrong=turn.wrong,
                )
            )
        self._group.barrier()

    def _declare(self, case: Case, paths: BenchPaths, unsupported: dict[str, str]) -> None:
        """Record once per collective, and at changes, whether each path supports it."""
        for path in paths.all:
            key = path.name, f"{case.collective} {unsupported.get(path.name)}"
            if self._world.rank or key in self._declared:
                continue
            self._declared.add(key)
            self._writer.add(
                PathStateEvent(
                    at_s=self._now(),
                    path=path.name,
                    label=path.label,
                    collective=case.collective,
                    obstacle=unsupported.get(path.name),
                )
            )

    def _progress(self, done: int, total: int, case: Case | None) -> None:
        if self._world.rank:
            return
        doing = "memory and flags of this machine"
        if case is not None:
            doing = f"{case.collective} {case.num_bytes}"
        self._writer.add(ProgressEvent(at_s=self._now(), done=done, total=total, doing=doing))
        self._writer.flush()

    def _now(self) -> float:
        return round(time.monotonic() - self._began, 6)


def rounded(times_s: Sequence[float]) -> list[float]:
    """Round to 0.1 ns, the resolution of the clock, to save space."""
    return [round(seconds, 10) for seconds in times_s]
