"""Plans: predicted steps of many rank counts as ranges, and what makes them wide. Pure.

What is not known of the target is drawn between its bounds, the same for all rank counts of a draw,
so that a speed-up is surer than the times it is made of.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from phalanx.comm.link import Link
from phalanx.gradients.buckets import MESSAGE_OVERHEAD_S
from phalanx.parallel.costs import Trained, data_parallel_costs
from phalanx.plan.compute import compute_time, measured_contention, measured_samples
from phalanx.plan.data_parallel import (
    PlannedBucket,
    StepPrediction,
    bucket_list,
    loss_sum_of,
    predict_step,
)
from phalanx.plan.machine import Cluster, SumTime
from phalanx.plan.measured_rows import MeasuredRow
from phalanx.plan.profile import ProgramProfile
from phalanx.plan.sums import LinkSpeed, RankLayout

DRAWS = 60
SEED = 35
BETWEEN_RUNS = 0.10
"""Half width of the 90 % range of a step's time between runs, of which a profile has one."""
ANOTHER_PROCESSOR = 0.10
STATED_BANDWIDTH = (0.2, 1.0)
"""Share of a stated bandwidth that programs reach; a measured one has its spread."""
UNKNOWN_LATENCY_S = (1.5e-6, 60e-6)
THREAD_SHARE = 0.3
"""Share of a sum's time that its thread takes from the backward pass beside it, where no core is
free: found on the GPT over an emulated link, 2 ranks on 2 cores."""
UNKNOWN_CONTENTION = (1.0, 1.3)
FAR_RANKS = 100
"""Times the ranks that were calibrated at once beyond which a plan is extrapolated."""
_Z90 = 1.645


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


MIDDLE = Unknowns()
WORDS: Mapping[str, str] = {
    "run": "how much runs of the program differ",
    "processor": "the processor",
    "hidden": "how much of the sums the backward pass hides",
    "bandwidth": "the bandwidth that sums reach",
    "latency": "the latency of the network",
    "contention": "how much ranks of a node slow each other down",
}
"""The unknowns in words."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machine and the way in which a program is to run there."""

    machine: Cluster | None
    """None: more machines like the one of the profile, without a network: one node."""
    ranks_per_node: int
    speed: float = 1.0
    """Times the speed of the profile's processor."""
    is_same_processor: bool = True
    link: Link | None = None
    """Emulated link, by which ranks of one machine are nodes of their own."""
    overlap: bool | None = None
    """None: as the run decides."""

    @property
    def sums(self) -> list[SumTime]:
        return [] if self.machine is None else self.machine.all_reduce


class RankPlan(NamedTuple):
    """A prediction for a number of ranks."""

    ranks: int
    nodes: int
    step: Range
    speed_up: Range
    parts: StepPrediction
    """Seconds of the middle of all unknowns."""
    epoch_s: Range
    node_hours: float
    """Node hours of an epoch."""
    memory_bytes: float
    sent_bytes: float
    """Bytes that a rank sends in a step."""
    unsure: list[tuple[str, float]]
    """The unknowns that make the range of the speed-up wide: name, and half width of the step's
    range that each alone makes, as a share; the widest first."""


def plan_ranks(
    profile: ProgramProfile, target: Target, counts: Sequence[int], rows: Sequence[MeasuredRow] = ()
) -> list[RankPlan]:
    """Return the predictions of a data-parallel training of the profile's global batch.

    rows: measured ones of the target. Each draw of the unknowns is corrected by the median ratio of
    what they took to what it says of them, and so is less free the more it depends on them.
    """
    draws = draw_unknowns(between_runs=max(BETWEEN_RUNS, profile.unsteadiness()))
    several = [row for row in rows if row.ranks > 1]
    ratios = _ratios(profile, target, several, draws)
    of_one = _ratios(profile, target, [row for row in rows if row.ranks == 1], draws)
    alone = _Predictor(profile, target, 1)
    base = [ratio * alone.step(draw).step_s for ratio, draw in zip(of_one, draws, strict=True)]
    return [_plan_of(profile, target, ranks, draws, base, ratios) for ranks in counts]


def _ratios(
    profile: ProgramProfile, target: Target, rows: Sequence[MeasuredRow], draws: Sequence[Unknowns]
) -> list[float]:
    """Return the median ratio of measured to predicted steps, for each draw; 1 without rows."""
    if not rows:
        return [1.0] * len(draws)
    predictors = [(_Predictor(profile, target, row.ranks), row.step_s) for row in rows]
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
    run, processor, *others = places
    return Unknowns(_factor(run, between_runs), _factor(processor, ANOTHER_PROCESSOR), *others)


def _factor(place: float, half_width: float) -> float:
    """Return a factor around 1 of which 90 % lie within the half width."""
    deviation = math.log1p(half_width) / _Z90
    return math.exp(deviation * statistics.NormalDist().inv_cdf(place))


class _Predictor:
    """The steps of a number of ranks, for any draw of the unknowns."""

    def __init__(self, profile: ProgramProfile, target: Target, ranks: int) -> None:
        per_node = 1 if target.link is not None else target.ranks_per_node
        self.layout = RankLayout(ranks, per_node)
        self._profile, self._target, self._ranks = profile, target, ranks
        self._at_once = min(ranks, target.ranks_per_node)
        sums = target.sums or profile.sums
        self.buckets: list[PlannedBucket] = []
        self._loss_sum = loss_sum_of(self.layout, target.link)
        if ranks > 1:
            self.buckets = bucket_list(
                profile, self.layout, sums, overlap=target.overlap, link=target.link
            )

    def step(self, draw: Unknowns) -> StepPrediction:
        profile, target = self._profile, self._target
        time = compute_time(
            profile,
            profile.global_batch / self._ranks,
            self._at_once,
            self._ranks,
            self._contention(draw),
        )
        factor = draw.run / target.speed * (1.0 if target.is_same_processor else draw.processor)
        time = time.scaled(factor)
        link, loss = self._link(draw), self._loss_sum
        if link is None or len(self.buckets) < 2:
            return predict_step(time, self.buckets, link, loss_sum=loss)
        hidden = predict_step(
            time, self.buckets, link, loss_sum=loss, thread_share=self._thread_share()
        )
        if target.link is not None:  # it sleeps: all is hidden that can be
            return hidden
        shown = predict_step(time, self.buckets, link, hides=False, loss_sum=loss)
        share = draw.hidden
        mixed = (share * a + (1 - share) * b for a, b in zip(hidden, shown, strict=True))
        return StepPrediction(*mixed)

    def _contention(self, draw: Unknowns) -> float | None:
        """Return the time of as many ranks at once as multiple of one alone; None: as measured."""
        target, at_once = self._target, self._at_once
        if target.machine is None or at_once == 1:
            return None if target.machine is None else 1.0
        known = target.machine.contention
        if known:
            return known[min(known, key=lambda ranks: abs(ranks - at_once))]
        samples = self._profile.global_batch / self._ranks
        low, high = UNKNOWN_CONTENTION
        high = max(high, measured_contention(self._profile, samples, at_once))
        return low + draw.contention * (high - low)

    def _link(self, draw: Unknowns) -> LinkSpeed | None:
        target = self._target
        if self.layout.on_one_node:
            return None
        if target.link is not None:
            bandwidth = target.link.bandwidth_bytes_per_s or math.inf
            measured = self._profile.message_overhead_s
            overhead = MESSAGE_OVERHEAD_S if measured is None else measured
            return LinkSpeed(bandwidth, target.link.latency_s, overhead)
        network = None if target.machine is None else target.machine.network
        assert network is not None, "checked: more nodes than one need a network"
        spread = network.bandwidth_spread
        low, high = (1 - spread, 1 + spread) if spread else STATED_BANDWIDTH
        share = low + draw.bandwidth * (high - low)
        latency = network.latency_s
        if latency is None:
            least, most = UNKNOWN_LATENCY_S
            latency = math.exp(math.log(least) + draw.latency * math.log(most / least))
        overhead = draw.latency * MESSAGE_OVERHEAD_S
        return LinkSpeed(share * network.bandwidth_bytes_per_s, latency, overhead)

    def _thread_share(self) -> float:
        """Return the share of a sum's time that its thread takes from the backward pass: nothing
        where a core is free for it."""
        machine = self._target.machine
        cores = self._profile.cores if machine is None else machine.cores_per_node
        is_free = cores is not None and cores > self._at_once * self._profile.threads
        return 0.0 if is_free else THREAD_SHARE


def _plan_of(
    profile: ProgramProfile,
    target: Target,
    ranks: int,
    draws: Sequence[Unknowns],
    base: Sequence[float],
    ratios: Sequence[float],
) -> RankPlan:
    predictor = _Predictor(profile, target, ranks)
    if ranks == 1:  # the same as the base of the speed-ups
        steps = list(base)
    else:
        steps = [r * predictor.step(draw).step_s for r, draw in zip(ratios, draws, strict=True)]
    nodes = -(-ranks // target.ranks_per_node)
    num_steps = max(1, profile.train_samples // profile.global_batch)
    step = Range.of(steps)
    sent = sum(bucket.sum.traffic.sent_bytes for bucket in predictor.buckets)
    trained = Trained(profile.itemsize, profile.gradient_bytes, profile.quantities)
    costs = data_parallel_costs(trained, sent, sent)
    return RankPlan(
        ranks=ranks,
        nodes=nodes,
        step=step,
        speed_up=Range.of([one / many for one, many in zip(base, steps, strict=True)]),
        parts=predictor.step(MIDDLE),
        epoch_s=Range(*(num_steps * seconds for seconds in step)),
        node_hours=nodes * num_steps * step.median / 3600,
        memory_bytes=costs.state_bytes or 0.0,
        sent_bytes=sent,
        unsure=_widest(predictor, draws, step.median),
    )


def _widest(
    predictor: _Predictor, draws: Sequence[Unknowns], median_s: float
) -> list[tuple[str, float]]:
    found = []
    for number, name in enumerate(Unknowns._fields):
        ordered = sorted(draw[number] for draw in draws)
        ends = ordered[round(0.05 * (len(draws) - 1))], ordered[round(0.95 * (len(draws) - 1))]
        steps = [predictor.step(MIDDLE._replace(**{name: end})).step_s for end in ends]
        found.append((name, abs(steps[1] - steps[0]) / 2 / median_s))
    return sorted((each for each in found if each[1] > 0.002), key=lambda each: -each[1])


def what_helps(profile: ProgramProfile, target: Target, ranks: int) -> list[tuple[str, float]]:
    """Return by how much a step of `ranks` gets shorter with a better network, the best first;
    empty where they are on one node."""
    machine = target.machine
    if machine is None or machine.network is None or ranks <= target.ranks_per_node:
        return []
    network = machine.network
    changes: dict[str, dict[str, Any]] = {
        "twice the bandwidth": {"bandwidth_bytes_per_s": 2 * network.bandwidth_bytes_per_s},
        "half the latency": {"latency_s": network.latency_s and network.latency_s / 2},
    }
    before_s = _Predictor(profile, target, ranks).step(MIDDLE).step_s
    found = []
    for words, change in changes.items():
        better = msgspec.structs.replace(network, **change)
        changed = replace(target, machine=msgspec.structs.replace(machine, network=better))
        found.append((words, before_s / _Predictor(profile, changed, ranks).step(MIDDLE).step_s))
    return sorted(found, key=lambda each: -each[1])


def reasons_to_doubt(profile: ProgramProfile, target: Target, counts: Sequence[int]) -> list[str]:
    """Return in which ways a plan goes beyond what was calibrated; empty: in none."""
    found = []
    if not target.is_same_processor:
        stated = "" if target.machine is None else f" ({target.machine.processor})"
        found.append(f"another processor{stated}, taken as {target.speed:.2g} × ours")
    most = profile.most_at_once()
    if max(counts) >= FAR_RANKS * most:
        found.append(f"{max(counts) // most} times the ranks that were calibrated")
    low, high = measured_samples(profile)
    smallest, largest = (profile.global_batch / f(counts) for f in (max, min))
    if smallest < low or largest > high:
        found.append(
            f"batches of {smallest:g} to {largest:g} samples a rank, measured {low} to {high}"
        )
    return found
