"""Plans: predicted steps of many rank counts as ranges, and what makes them wide. Pure.

What is not known of the target is drawn between its bounds, the same for all rank counts of a draw,
so that a speed-up is surer than the times it is made of.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from phalanx.comm.link import Link
from phalanx.comm.traffic import sum_traffic
from phalanx.gradients.buckets import MESSAGE_OVERHEAD_S
from phalanx.parallel.costs import (
    Trained,
    data_parallel_costs,
    local_costs,
    shared_memory_costs,
)
from phalanx.parallel.options import StrategyOptions
from phalanx.plan.compute import (
    ComputeTime,
    compute_time,
    measured_contention,
    measured_samples,
    peak_bytes,
)
from phalanx.plan.data_parallel import (
    PlannedBucket,
    StepPrediction,
    bucket_list,
    loss_sum_of,
    step_spans,
)
from phalanx.plan.events import ActionSpan
from phalanx.plan.machine import Cluster, SumTime
from phalanx.plan.measured_rows import MeasuredRow
from phalanx.plan.mesh_step import MeshStep
from phalanx.plan.profile import ProgramProfile
from phalanx.plan.sums import CODINGS, LinkSpeed, RankLayout
from phalanx.records.events import ExpectedCosts
from phalanx.records.plan import PlannedRange, PlannedRanks

DRAWS = 60
SEED = 35
BETWEEN_RUNS = 0.10
"""Half width of the 90 % range of a step's time between runs, of which a profile has one."""
BESIDE_RUNS = 0.05
"""The same of the ratio of two runs that follow each other."""
JOINING_S = 0.4
"""Seconds by which a start over MPI takes longer than that of one process, of the MLP and GPT."""
ANOTHER_PROCESSOR = 0.10
ANOTHER_ENGINE = 0.10
STATED_BANDWIDTH = (0.2, 1.0)
"""Share of a stated bandwidth that programs reach; a measured one has its spread."""
UNKNOWN_LATENCY_S = (1.5e-6, 60e-6)
THREAD_SHARE = 0.25
"""Share of the time that a sum and the backward pass go on beside each other by which each delays
the other, where no core is free: of the GPT over an emulated link, 2 ranks on 2 cores."""
WAKE_S = 0.25e-3
"""Seconds by which a rank that slept for a message computes more slowly after it, beside those of
the message itself: of the MLP over an emulated link."""
SPREAD_S = 0.03
"""Seconds after which the kernel has spread ranks over the cores, about: of the RNN, 3 ranks."""
UNKNOWN_CONTENTION = (1.0, 1.3)
FAR_RANKS = 100
"""Times the ranks that were calibrated at once beyond which a plan is extrapolated."""
_Z90 = 1.645
ON_MESH = ("zero", "tensor", "pipeline", "mesh")
PLANNED = ("mpi", "shared", "local", *ON_MESH)
"""Strategies whose steps are predicted."""


class Range(NamedTuple):
    """A median and the bounds of the 90 % range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        ordered = sorted(values)
        last = len(ordered) - 1
        low, high = (ordered[round(share * last)] for share in (0.05, 0.95))
        return cls(statistics.median(ordered), low, high)

    def scaled(self, factor: float, more_s: float = 0.0) -> PlannedRange:
        """Return the record of a factor of it, and of further seconds, which differ between runs,
        too."""
        more = (more_s, (1 - BETWEEN_RUNS) * more_s, (1 + BETWEEN_RUNS) * more_s)
        median, low, high = (factor * value + m for value, m in zip(self, more, strict=True))
        return PlannedRange(median=median, low=low, high=high)


class Unknowns(NamedTuple):
    """A draw of what is not known, each a factor or a share; the middle one is `MIDDLE`."""

    run: float = 1.0
    """Time between runs of the same program."""
    processor: float = 1.0
    hidden: float = 0.5
    """Share of what the backward pass could hide that it hides."""
    bandwidth: float = 0.5
    """Place between the bounds of the bandwidth; so of those below."""
    latency: float = 0.5
    contention: float = 0.5
    engine: float = 1.0
    """Step of a mesh, of compressed gradients or over a real network: what the engine takes there
    was found on two models, or nowhere."""


MIDDLE = Unknowns()


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machine and the way in which a program is to run there."""

    machine: Cluster | None
    """None: more machines like the one of the profile, without a network: one node."""
    ranks_per_node: int
    speed: float = 1.0
    """Times the speed of the profile's processor."""
    is_same_processor: bool = True
    epochs: int = 1
    options: StrategyOptions = field(default_factory=lambda: StrategyOptions(strategy="mpi"))

    @property
    def link(self) -> Link | None:
        """Return the emulated link, by which ranks of one machine are nodes of their own."""
        return None if self.options.link is None else Link.parse(self.options.link)

    @property
    def overlap(self) -> bool | None:
        """Return whether sums overlap the backward pass; None: as the run decides."""
        chosen = self.options.overlap
        return None if chosen == "auto" else chosen == "on"

    @property
    def memory_bytes(self) -> float | None:
        """Return the memory that a rank may have; None: not known."""
        most = None if self.machine is None else self.machine.memory_gib_per_rank
        return None if most is None else most * 2**30

    @property
    def sums(self) -> list[SumTime]:
        return [] if self.machine is None else self.machine.all_reduce


def plan_ranks(
    profile: ProgramProfile, target: Target, counts: Sequence[int], rows: Sequence[MeasuredRow] = ()
) -> list[PlannedRanks]:
    """Return the predictions of a training of the profile's global batch, by the target's
    strategy.

    rows: measured ones of the target. Each draw of the unknowns is corrected by the median ratio of
    what they took to what it says of them, and so is less free the more it depends on them.
    """
    unsteady = profile.disturbance()
    draws = draw_unknowns(between_runs=max(BETWEEN_RUNS, unsteady))
    inside, beyond = (
        [row for row in rows if row.ranks > 1 and (row.ranks > target.ranks_per_node) is is_beyond]
        for is_beyond in (False, True)
    )
    node_ratios = _ratios(profile, target, inside, draws)
    link_ratios = _ratios(profile, target, beyond or inside, draws)
    of_one = _ratios(profile, target, [row for row in rows if row.ranks == 1], draws)
    alone = Predictor(profile, target, 1)
    base = [ratio * alone.step(draw).step_s for ratio, draw in zip(of_one, draws, strict=True)]
    others = draw_unknowns(seed=SEED + 1, between_runs=max(BESIDE_RUNS, unsteady))
    found = []
    for ranks in counts:
        predictor, steps = Predictor(profile, target, ranks), base
        gains = [1.0] * len(base)
        if ranks > 1:
            ratios = link_ratios if ranks > target.ranks_per_node else node_ratios
            steps = [r * predictor.step(draw).step_s for r, draw in zip(ratios, draws, strict=True)]
            gains = [each.run * one / n for each, one, n in zip(others, base, steps, strict=True)]
        measured = [row.step_s for row in rows if row.ranks == ranks]
        found.append(_planned(predictor, Range.of(steps), Range.of(gains), measured, draws))
    return found


def _ratios(
    profile: ProgramProfile, target: Target, rows: Sequence[MeasuredRow], draws: Sequence[Unknowns]
) -> list[float]:
    """Return the median ratio of measured to predicted steps, for each draw; 1 without rows."""
    if not rows:
        return [1.0] * len(draws)
    predictors = [(Predictor(profile, target, row.ranks), row.step_s) for row in rows]
    return [
        statistics.median(
            measured_s / predictor.step(draw._replace(run=1.0)).step_s
            for predictor, measured_s in predictors
        )
        for draw in draws
    ]


def draw_unknowns(
    number: int = DRAWS, seed: int = SEED, *, between_runs: float = BETWEEN_RUNS
) -> list[Unknowns]:
    """Return draws of all unknowns, each spread evenly over its range, in another order each (a
    Latin hypercube). between_runs: half width of the 90 % range of a step's time."""
    generator = random.Random(seed)
    columns = []
    for _ in Unknowns._fields:
        column = [(place + 0.5) / number for place in range(number)]
        generator.shuffle(column)
        columns.append(column)
    return [_unknowns_of(places, between_runs) for places in zip(*columns, strict=True)]


def _unknowns_of(places: Sequence[float], between_runs: float) -> Unknowns:
    run, processor, *others, engine = places
    factors = _factor(run, between_runs), _factor(processor, ANOTHER_PROCESSOR)
    return Unknowns(*factors, *others)._replace(engine=_factor(engine, ANOTHER_ENGINE))


def _factor(place: float, half_width: float) -> float:
    """Return a factor around 1 of which 90 % lie within the half width."""
    deviation = math.log1p(half_width) / _Z90
    return math.exp(deviation * statistics.NormalDist().inv_cdf(place))


class Predictor:
    """The steps of a number of ranks, for any draw of the unknowns."""

    def __init__(self, profile: ProgramProfile, target: Target, ranks: int) -> None:
        options = target.options
        per_node = 1 if target.link is not None else target.ranks_per_node
        self.layout = RankLayout(ranks, per_node)
        self.profile, self.target, self.ranks = profile, target, ranks
        self._at_once = min(ranks, target.ranks_per_node)
        self._turns = max(1.0, self._sharing(self._at_once))
        """Ranks that share a core."""
        self._pace = profile.pace / target.speed
        self.strategy = options.strategy if ranks > 1 else "mpi"
        sums = target.sums or profile.sums
        self.mesh: MeshStep | None = None
        self.buckets: list[PlannedBucket] = []
        self._loss_sum = loss_sum_of(self.layout, target.link)
        if self.strategy in ON_MESH:
            more = {"turns": self._turns, "pace": self._pace}
            self.mesh = MeshStep(profile, options, ranks, per_node, sums, **more)
        elif ranks > 1:
            self.buckets = bucket_list(
                profile,
                self.layout,
                sums,
                overlap=target.overlap if self.strategy == "mpi" else False,
                link=target.link,
                coding=CODINGS.get(options.compress),
                turns=self._turns,
                pace=self._pace,
            )

    def step(self, draw: Unknowns) -> StepPrediction:
        link = self._link(draw)
        found = self._step(draw, link, hides=self.mesh is None and link is None)
        if self._may_hide(link):
            hidden = self._step(draw, link, hides=True)
            # An emulated link sleeps: all is hidden that can be.
            share = 1.0 if self.target.link is not None else draw.hidden
            found = found.mixed_with(hidden, share)
        options, is_real = self.target.options, link is not None and self.target.link is None
        is_engine = self.mesh is not None or options.compress != "none" or is_real
        return StepPrediction(*(draw.engine * each for each in found)) if is_engine else found

    def _may_hide(self, link: LinkSpeed | None) -> bool:
        """Return whether messages between nodes may go on while the rank computes."""
        several = len(self.buckets) > 1 if self.mesh is None else self.mesh.mesh.shard > 1
        return link is not None and several

    def _step(self, draw: Unknowns, link: LinkSpeed | None, *, hides: bool) -> StepPrediction:
        time = self._time(draw, self.samples_of_rank)
        if self.strategy == "local":
            return _between_averages(time, self.buckets, link, self.target.options.local_steps)
        return StepPrediction.of(self._spans(draw, link, hides=hides), time)

    def spans(self, draw: Unknowns) -> list[ActionSpan]:
        """Return the actions of a step, of each place in a pipeline, all hidden that can be."""
        link = self._link(draw)
        return self._spans(draw, link, hides=self.mesh is None or self._may_hide(link))

    def _spans(self, draw: Unknowns, link: LinkSpeed | None, *, hides: bool) -> list[ActionSpan]:
        if self.mesh is not None:
            return self.mesh.spans(partial(self._time, draw), link, hides=hides)
        time, buckets, loss = self._time(draw, self.samples_of_rank), self.buckets, self._loss_sum
        share = self._thread_share() if hides and len(buckets) > 1 else 0.0
        return step_spans(time, buckets, link, hides=hides, loss_sum=loss, thread_share=share)

    @property
    def samples_of_rank(self) -> float:
        return self.mesh.samples if self.mesh else self.profile.samples_of_rank(self.ranks)

    @property
    def num_places(self) -> int:
        """Return the number of ranks that do different things."""
        return 1 if self.mesh is None else self.mesh.mesh.pp

    def coordinates(self, rank: int) -> dict[str, int]:
        return {} if self.mesh is None else self.mesh.mesh.coordinates(rank)

    def place_of(self, rank: int) -> int:
        """Return the place of a rank in its pipeline."""
        return self.coordinates(rank).get("pp", 0)

    def closed_form_s(self) -> float:
        """Return a step in the middle of all unknowns, nearly and fast."""
        if self.mesh is None:
            return self.step(MIDDLE).step_s
        time_of = partial(self._time, MIDDLE)
        return self.mesh.closed_form_s(time_of, self._link(MIDDLE))

    def memory_bytes(self) -> float:
        """Return the most memory of a rank as far as it is known: of its process, else its
        state."""
        return self.peak_bytes() or self.state_bytes()

    def _time(self, draw: Unknowns, samples: float) -> ComputeTime:
        """Return the step of a rank that exchanges nothing."""
        target, contention = self.target, self._contention(draw)
        apart = round(self.ranks / self._turns)  # ranks that share a core are late together
        period = target.options.local_steps if self.strategy == "local" else 1
        time = compute_time(self.profile, samples, self._at_once, apart, contention, period)
        if self.strategy == "shared":  # each updates its part of the one copy of a node
            time = time._replace(optimizer_s=time.optimizer_s / self.layout.local_ranks)
        factor = draw.run / target.speed * (1.0 if target.is_same_processor else draw.processor)
        time = time.scaled(factor)
        # Short steps end before the ranks are spread evenly over the cores.
        uneven = math.ceil(self._turns) - self._turns
        turns = self._turns + uneven * SPREAD_S / (SPREAD_S + self._turns * time.own_s)
        measured = self._nearest_contention() or 1  # it has the turns of as many ranks in it
        time = time.scaled(turns / max(1.0, self._sharing(measured)))
        storage = None if target.machine is None else target.machine.storage_bytes_per_s
        if storage is None:
            return time
        # A node reads ahead while its ranks compute: the slower of both is what a step takes.
        load_s = self._at_once * samples * self.profile.sample_bytes / storage
        return time._replace(data_s=max(time.data_s, load_s - (time.own_s - time.data_s)))

    def _sharing(self, ranks: int) -> float:
        """Return how many of so many ranks of a node share a core; 0: the cores are not known."""
        machine = self.target.machine
        cores = self.profile.cores if machine is None else machine.cores_per_node
        return ranks * self.profile.threads / cores if cores else 0.0

    def _nearest_contention(self) -> int | None:
        """Return the measured number of ranks of the target's node that is nearest to ours; None:
        its contention is not known, or one rank has none."""
        known = {} if self.target.machine is None else self.target.machine.contention
        if self._at_once == 1 or not known:
            return None
        return min(known, key=lambda ranks: abs(ranks - self._at_once))

    def outside_steps_s(self) -> float:
        """Return the seconds of a training outside its steps: its start, and after each epoch an
        evaluation, which the ranks divide, and a checkpoint."""
        profile, turns = self.profile, self._turns
        after_s = turns * (profile.evaluation_s or 0.0) / self.ranks
        start_s = turns * (profile.startup_s + self._pace * JOINING_S * (self.ranks > 1))
        return start_s + self.target.epochs * (after_s + (profile.checkpoint_s or 0.0))

    def state_bytes(self) -> float:
        """Return the parameters, gradients and optimizer state of the fullest rank."""
        found = self.costs().state_bytes if self.mesh is None else self.mesh.state_bytes()
        return found or 0.0

    def peak_bytes(self) -> float | None:
        """Return the most memory of a rank's process: that of one rank alone by its samples, with
        this one's state in place of the whole; None where it was not measured."""
        kept = self.mesh.kept_samples() if self.mesh else self.profile.samples_of_rank(self.ranks)
        whole = peak_bytes(self.profile, kept)
        return None if whole is None else whole - self.profile.state_bytes + self.state_bytes()

    def costs(self) -> ExpectedCosts:
        """Return the bytes of a step and of the state, by the formulas of the runs."""
        if self.mesh is not None:
            return self.mesh.costs()
        profile, options = self.profile, self.target.options
        trained = Trained(profile.itemsize, profile.gradient_bytes, profile.quantities)
        moved = sum_traffic([bucket.sum.traffic for bucket in self.buckets])
        if self.strategy == "local":
            has_momentum = options.outer_optimizer == "nesterov"
            return local_costs(
                trained, moved, period=options.local_steps, has_momentum=has_momentum
            )
        if self.strategy == "shared":
            return shared_memory_costs(trained, moved, "", self.layout.local_ranks, "k")
        return data_parallel_costs(trained, moved.sent_bytes, moved.received_bytes)

    def _contention(self, draw: Unknowns) -> float | None:
        """Return the time of as many ranks at once as multiple of one alone; None: as measured."""
        target, at_once = self.target, self._at_once
        if target.machine is None or at_once == 1:
            return None if target.machine is None else 1.0
        if nearest := self._nearest_contention():
            return target.machine.contention[nearest]
        low, high = UNKNOWN_CONTENTION
        high = max(high, measured_contention(self.profile, self.samples_of_rank, at_once))
        return low + draw.contention * (high - low)

    def _link(self, draw: Unknowns) -> LinkSpeed | None:
        target = self.target
        if self.layout.on_one_node:
            return None
        if target.link is not None:
            bandwidth = target.link.bandwidth_bytes_per_s or math.inf
            measured = self.profile.message_overhead_s
            overhead = MESSAGE_OVERHEAD_S if measured is None else measured
            return LinkSpeed(bandwidth, target.link.latency_s, overhead + self._pace * WAKE_S)
        network = None if target.machine is None else target.machine.network
        assert network is not None, "checked: more nodes than one need a network"
        spread = network.bandwidth_spread
        reached = (1 - spread, 1 + spread) if spread else STATED_BANDWIDTH
        return draw_link(network.bandwidth_bytes_per_s, network.latency_s, reached, draw)

    def _thread_share(self) -> float:
        """Return the share of a sum's time that its thread takes from the backward pass: nothing
        where a core is free for it."""
        return 0.0 if 0 < self._sharing(self._at_once) < 1 else THREAD_SHARE


def draw_link(
    bandwidth_bytes_per_s: float,
    latency_s: float | None,
    reached: tuple[float, float],
    draw: Unknowns,
) -> LinkSpeed:
    """Return a link between nodes in a draw of what is not known of it. reached: least and most of
    the bandwidth that programs reach, as shares."""
    (low, high), (least_s, most_s) = reached, UNKNOWN_LATENCY_S
    share = low + draw.bandwidth * (high - low)
    if latency_s is None:
        latency_s = least_s * math.pow(most_s / least_s, draw.latency)
    overhead_s = draw.latency * MESSAGE_OVERHEAD_S
    return LinkSpeed(share * bandwidth_bytes_per_s, latency_s, overhead_s)


def _between_averages(
    time: ComputeTime, buckets: Sequence[PlannedBucket], link: LinkSpeed | None, period: int
) -> StepPrediction:
    """Return a step of local SGD, of which every `period`-th ends with an average."""
    exposed_s = sum(bucket.sum.seconds(link) for bucket in buckets) / period
    step_s = time.own_s + time.waiting_s + exposed_s
    return StepPrediction(step_s, time.own_s, time.waiting_s, exposed_s, 0.0)


def _planned(
    predictor: Predictor,
    step: Range,
    gain: Range,
    measured: Sequence[float],
    draws: Sequence[Unknowns],
) -> PlannedRanks:
    profile, target, ranks = predictor.profile, predictor.target, predictor.ranks
    nodes, machine = -(-ranks // target.ranks_per_node), target.machine
    num_steps = max(1, profile.train_samples // profile.global_batch)
    outside_s = predictor.outside_steps_s()
    whole_s = step.scaled(target.epochs * num_steps, outside_s)
    node_hours = nodes * whole_s.median / 3600
    price = None if machine is None else machine.price_per_node_hour
    return PlannedRanks(
        ranks=ranks,
        nodes=nodes,
        step_s=step.scaled(1.0),
        speed_up=gain.scaled(1.0),
        epoch_s=step.scaled(num_steps),
        whole_s=whole_s,
        parts=predictor.step(MIDDLE)._asdict(),
        outside_s=outside_s,
        node_hours=node_hours,
        cost=None if price is None else price * node_hours,
        sent_bytes=predictor.costs().sent_bytes,
        state_bytes=predictor.state_bytes(),
        peak_bytes=predictor.peak_bytes(),
        measured_s=statistics.median(measured) if measured else None,
        unsure=_widest(predictor, draws, step.median),
    )


def _widest(predictor: Predictor, draws: Sequence[Unknowns], median_s: float) -> dict[str, float]:
    """Return half of the range of a step that each unknown alone makes, as a share, the widest
    first."""
    found = []
    for number, name in enumerate(Unknowns._fields):
        ordered = sorted(draw[number] for draw in draws)
        ends = ordered[round(0.05 * (len(draws) - 1))], ordered[round(0.95 * (len(draws) - 1))]
        steps = [predictor.step(MIDDLE._replace(**{name: end})).step_s for end in ends]
        found.append((name, abs(steps[1] - steps[0]) / 2 / median_s))
    wide = (each for each in found if each[1] > 0.002)
    return dict(sorted(wide, key=lambda each: -each[1]))


def reasons_to_doubt(profile: ProgramProfile, target: Target, counts: Sequence[int]) -> list[str]:
    """Return in which ways a plan goes beyond what was calibrated; empty: in none."""
    found = []
    if not target.is_same_processor:
        named = None if target.machine is None else target.machine.processor
        stated = "" if named is None else f" ({named})"
        found.append(f"another processor{stated}, taken as {target.speed:.2g} × ours")
    most = profile.most_at_once()
    if max(counts) >= FAR_RANKS * most:
        found.append(f"{max(counts) // most} times the ranks that were calibrated")
    low, high = measured_samples(profile)
    smallest, largest = (profile.samples_of_rank(f(counts)) for f in (max, min))
    if smallest < low or largest > high:
        found.append(
            f"batches of {smallest:g} to {largest:g} samples a rank, measured {low} to {high}"
        )
    return found
