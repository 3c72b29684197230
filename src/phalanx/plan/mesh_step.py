"""Predicted steps of meshes: sharded, tensor parallel, pipelines, and any mixture. Pure.

Stages, orders of pipelines and bytes are those of the runs themselves: the same functions make
them. Of ranks that do the same, one is followed; of a pipeline one for each of its ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from phalanx.errors import UserError
from phalanx.parallel.costs import (
    Trained,
    mesh_costs,
    stage_costs,
    step_traffic,
    zero_one_costs,
)
from phalanx.parallel.mesh import AXES, Mesh
from phalanx.parallel.options import MeshOptions
from phalanx.parallel.pipeline.cutting import cut_evenly
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action, Kind
from phalanx.parallel.pipeline.timeline import needed_actions, simulate
from phalanx.plan.compute import ComputeTime
from phalanx.plan.data_parallel import COMPUTE, NETWORK
from phalanx.plan.events import ActionSpan, LaneAction, length_s, run_actions
from phalanx.plan.layers import LayerShare, layer_seconds, layer_shares
from phalanx.plan.machine import SumTime
from phalanx.plan.profile import ProgramProfile
from phalanx.plan.sums import LinkSpeed, RankLayout, plan_sum
from phalanx.records.events import ExpectedCosts

HANDOVER_S, ACTION_S = 100e-6, 100e-6
"""Seconds of a message between stages on one node, beside its bytes, and of an action beside its
passes. These and the constants below were found on the MLP and the GPT, 2 ranks on 2 cores."""
MESSAGE_S, COLD_S = 600e-6, 1e-3
"""Processor seconds that a rank takes to send or receive a message between stages after it has
computed for long, and the time after which they are half: what computes takes the code of
PyTorch and MPI out of the processor's caches."""
SPLIT_S = 50e-6
"""Processor seconds for a parameter and micro-batch by which each half of a backward pass of a
stage takes longer than those of its layers: PyTorch walks the graph in Python."""
UNIT_S, UNIT_PARAMETER_S = 350e-6, 45e-6
"""Processor seconds of FSDP for a unit and a message of it, and for each of its parameters."""
ZERO_ONE_S = 2.2e-3
"""Processor seconds of ZeroRedundancyOptimizer and DDP in a step."""
TENSOR_CALL_S = 1.9e-3
"""Processor seconds of a split layer's message in DTensor, beside the message itself."""

TimeOf = Callable[[float], ComputeTime]
"""Step of a rank that exchanges nothing, by its samples."""


class AxisGroup(NamedTuple):
    """Ranks that differ along one axis alone, and how they are placed."""

    layout: RankLayout
    beside: int
    """Groups of the axis whose messages share the way out of a node."""

    @classmethod
    def of(cls, mesh: Mesh, axis: str, ranks_per_node: int) -> AxisGroup:
        length = getattr(mesh, axis)
        stride = math.prod(mesh.shape[AXES.index(axis) + 1 :])
        local = max(1, min(length, ranks_per_node // stride))
        return cls(RankLayout(length, local), max(1, min(ranks_per_node, mesh.size) // local))

    def link(self, link: LinkSpeed | None) -> LinkSpeed | None:
        """Return this group's part of the link between nodes; None: it is on one node."""
        if link is None or self.layout.on_one_node:
            return None
        return link._replace(bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / self.beside)


class MeshStep:
    """The step of a program on a mesh.

    Raises: UserError where the profile does not know the program's units or layers, or a strategy
            cannot cut it, with the module's name.
    """

    def __init__(
        self,
        profile: ProgramProfile,
        options: MeshOptions,
        ranks: int,
        ranks_per_node: int,
        sums: Sequence[SumTime],
        turns: float = 1.0,
        pace: float = 1.0,
    ) -> None:
        """turns: ranks that share a core, each of which waits for the processor seconds of all.
        pace: factor of what the engine takes by itself, as of `ProgramProfile`."""
        self.mesh = mesh = options.mesh_of(ranks)
        self._profile, self._options, self._sums = profile, options, sums
        self._turns, self._pace = turns, pace
        self._calls = turns * pace
        """Factor of the processor seconds that the engine takes by itself."""
        self._groups = {axis: AxisGroup.of(mesh, axis, ranks_per_node) for axis in AXES}
        self.samples = profile.global_batch / mesh.data_size
        self.pipeline = options.layout(mesh)
        _check(profile, mesh)
        if self.pipeline is not None:
            self._stages = _cut(profile, self.pipeline, self.samples)

    @property
    def micro_batch(self) -> float:
        """Return the samples that a rank passes through the model at once."""
        return self.samples / (self.pipeline.micro_batches if self.pipeline else 1)

    # -- bytes -------------------------------------------------------------------------------

    def costs(self) -> ExpectedCosts:
        """Return the expected costs of rank 0, by the formulas of the runs."""
        profile, mesh, options = self._profile, self.mesh, self._options
        trained = Trained(profile.itemsize, profile.gradient_bytes, profile.quantities)
        if self.pipeline is not None:
            return self._stage_costs(trained, 0)
        if options.strategy == "zero" and options.zero_stage == 1:
            sizes = [math.prod(p.shape) for unit in profile.units.values() for p in unit]
            return zero_one_costs(trained, sizes, 0, mesh.size)
        return mesh_costs(
            profile.units,
            profile.split,
            mesh,
            mesh.coordinates(0),
            profile.itemsize,
            quantities=profile.quantities,
            zero_stage=options.zero_stage,
            rows=[math.ceil(self.samples) * profile.sequence],
        )

    def _stage_costs(self, trained: Trained, place: int) -> ExpectedCosts:
        layout, profile = self.pipeline, self._profile
        assert layout is not None, "asked of pipelines"
        ends = [profile.layers[stage[-1]].output_bytes for stage in self._stages[:-1]]
        batch = math.ceil(self.samples)
        traffic = step_traffic(layout, place, [batch * each for each in ends])
        own = sum(
            profile.layers[number].parameter_bytes
            for stage in layout.stages_of(place)
            for number in self._stages[stage]
        )
        divided = own // (self.mesh.tp * self.mesh.shard)
        return stage_costs(trained._replace(num_bytes=divided), 0.0, traffic)

    def state_bytes(self) -> float:
        """Return the parameters, gradients and optimizer state of the rank that has most."""
        if self.pipeline is None:
            return self.costs().state_bytes or 0.0
        trained = Trained(self._profile.itemsize, 0, self._profile.quantities)
        places = range(self.pipeline.num_ranks)
        return max(self._stage_costs(trained, place).state_bytes or 0.0 for place in places)

    def kept_samples(self) -> float:
        """Return how many samples' saved tensors of the whole model the fullest rank has at a
        time."""
        layout = self.pipeline
        if layout is None:
            return self.samples / self.mesh.tp
        saved = [layer.saved_bytes for layer in self._profile.layers]
        whole = sum(saved) or 1
        most = 0.0
        for spans in simulate(layout):
            held = 0.0
            for span in spans:
                share = sum(saved[number] for number in self._stages[span.action.stage]) / whole
                match span.action.kind:
                    case "forward":
                        held += share
                    case "backward" | "weight gradient":
                        held -= share
                most = max(most, held)
        return most * self.micro_batch / self.mesh.tp

    # -- seconds -----------------------------------------------------------------------------

    def spans(self, time_of: TimeOf, link: LinkSpeed | None, *, hides: bool) -> list[ActionSpan]:
        """Return all actions of a step with their times.

        link: between the nodes; None: all ranks are on one. hides: messages of sharding go on
        while the rank computes.
        """
        if self.pipeline is not None:
            return run_actions(self._pipeline_actions(self.pipeline, time_of, link))
        return run_actions(self._rank_actions(time_of(self.samples), link, hides=hides))

    def closed_form_s(self, time_of: TimeOf, link: LinkSpeed | None) -> float:
        """Return a step without following its actions: of a pipeline, the work of its busiest rank
        and the time in which it fills and drains."""
        layout = self.pipeline
        if layout is None:
            return length_s(self.spans(time_of, link, hides=False))
        step = time_of(self.samples)
        seconds = self._stage_seconds(time_of(self.micro_batch), link)
        both = [each["forward"] + each["backward"] for each in seconds]
        work = [sum(both[stage] for stage in layout.stages_of(r)) for r in range(layout.num_ranks)]
        fill_s = (layout.num_ranks - 1) * sum(both) / layout.num_stages
        idle_s = fill_s / (3 if layout.schedule == "zero-bubble" else 1)
        return step.data_s + layout.micro_batches * max(work) + idle_s + step.optimizer_s

    def _rank_actions(
        self, time: ComputeTime, link: LinkSpeed | None, *, hides: bool
    ) -> list[LaneAction]:
        """Return the actions of a rank that passes its samples through all units."""
        actions = [LaneAction("data", COMPUTE, time.data_s + time.other_s + time.waiting_s)]
        sent: list[int] = []

        def compute(name: str, seconds: float, needs: Sequence[int] = ()) -> None:
            waits = tuple(needs) if hides else (len(actions) - 1,)
            actions.append(LaneAction(name, COMPUTE, seconds, waits))

        def message(name: str, seconds: float, *, needs_last: bool = True) -> tuple[int, ...]:
            if not seconds:
                return ()
            waits = (len(actions) - 1,) if needs_last or not hides else ()
            actions.append(LaneAction(name, NETWORK, seconds, waits))
            sent.append(len(actions) - 1)
            return (len(actions) - 1,)

        shares = self._unit_shares()
        is_gathered_again = self._options.zero_stage == 3
        for name, (forward, _) in shares.items():
            came = message(f"gather {name}", self._gather_s(name, link), needs_last=False)
            compute(f"forward {name}", forward * time.forward_s + self._tensor_s(name, link), came)
        for name, (_, backward) in reversed(shares.items()):
            came = ()
            if is_gathered_again:
                came = message(f"gather {name}", self._gather_s(name, link), needs_last=False)
            seconds = backward * time.backward_s + self._tensor_s(name, link)
            compute(f"backward {name}", seconds, came)
            message(f"scatter {name}", self._gather_s(name, link) + self._shard_sum_s(name, link))
        message("sum", self._replica_sum_s(link))
        compute("optimizer", time.optimizer_s * self._own_share(), sent)
        if self._options.strategy == "zero" and self._options.zero_stage == 1:
            shared_s = self._half_s(self._profile.gradient_bytes, "dp", link)
            message("parameters", self._calls * ZERO_ONE_S + shared_s)
        return actions

    def _unit_shares(self) -> dict[str, tuple[float, float]]:
        """Return each unit's part of the forward and of the backward pass of a rank."""
        profile = self._profile
        found = layer_shares(profile, self.samples)
        if not found or set(profile.units) - {"", *found}:  # parts by their parameters
            values = {name: _values(profile, name) for name in profile.units}
            whole = sum(values.values()) or 1
            found = {n: LayerShare(v / whole, v / whole, 0.0) for n, v in values.items()}
        part = {name: self._split_part(name) for name in found}
        return {n: (part[n] * t.forward, part[n] * (t.input + t.weight)) for n, t in found.items()}

    def _split_part(self, name: str) -> float:
        """Return the part of a unit's arithmetic that a rank of axis tp has: that of its
        parameters."""
        whole = _values(self._profile, name)
        return _values(self._profile, name, self.mesh.tp) / whole if whole else 1.0

    def _own_share(self) -> float:
        """Return the part of all parameters that a rank updates."""
        if self._options.strategy == "zero" and self._options.zero_stage == 1:
            return 1 / self.mesh.size
        names = self._profile.units
        own = sum(_values(self._profile, name, self.mesh.tp) for name in names)
        return own / max(1, sum(_values(self._profile, n) for n in names)) / self.mesh.shard

    def _sum_s(self, num_bytes: float, axis: str, link: LinkSpeed | None) -> float:
        group = self._groups[axis]
        if group.layout.ranks == 1 or num_bytes < 1:
            return 0.0
        itemsize = self._profile.itemsize
        size = math.ceil(num_bytes / itemsize) * itemsize
        planned = plan_sum(size, itemsize, group.layout, self._sums, turns=self._turns)
        return planned.seconds(group.link(link))

    def _half_s(self, num_bytes: float, axis: str, link: LinkSpeed | None) -> float:
        """Return the seconds of an all-gather or a reduce-scatter: each is half of a sum."""
        return self._sum_s(num_bytes, axis, link) / 2

    def _gather_s(self, name: str, link: LinkSpeed | None) -> float:
        parameters = self._profile.units.get(name)
        if self.mesh.shard == 1 or not parameters:
            return 0.0
        size = _values(self._profile, name, self.mesh.tp) * self._profile.itemsize
        rate = self._profile.memory_bytes_per_s
        copies_s = 2 * size / rate if rate else 0.0
        own_s = self._calls * (UNIT_S + UNIT_PARAMETER_S * len(parameters))
        return own_s + copies_s + self._half_s(size, "shard", link)

    def _shard_sum_s(self, name: str, link: LinkSpeed | None) -> float:
        """Return the seconds of a unit's sum over the replicas of a shard."""
        if self.mesh.shard == 1 or self.mesh.dp == 1:
            return 0.0
        size = _values(self._profile, name, self.mesh.tp) * self._profile.itemsize
        return self._sum_s(size / self.mesh.shard, "dp", link)

    def _replica_sum_s(self, link: LinkSpeed | None) -> float:
        if self.mesh.shard > 1 or self.mesh.dp == 1:
            return 0.0
        tp = self.mesh.tp
        values = sum(_values(self._profile, name, tp) for name in self._profile.units)
        return self._sum_s(values * self._profile.itemsize / self.mesh.pp, "dp", link)

    def _tensor_s(self, name: str, link: LinkSpeed | None) -> float:
        """Return the seconds of a unit's messages over axis tp in one pass, which nothing hides."""
        profile = self._profile
        if self.mesh.tp == 1 or profile.split is None:
            return 0.0
        messages = profile.split.of(name)
        sums = messages.all_reduces + messages.pairs + messages.gathers / 2
        calls = messages.all_reduces + 2 * messages.pairs + messages.gathers
        rows = math.ceil(self.micro_batch) * profile.sequence
        one_s = self._sum_s(rows * profile.split.width * profile.itemsize, "tp", link)
        return (sums * one_s + self._calls * calls * TENSOR_CALL_S) / 2

    # -- pipelines ---------------------------------------------------------------------------

    def _pipeline_actions(
        self, layout: PipelineLayout, time_of: TimeOf, link: LinkSpeed | None
    ) -> list[LaneAction]:
        """Return the actions of all ranks of a pipeline, each in its own order."""
        step = time_of(self.samples)
        seconds = self._stage_seconds(time_of(self.micro_batch), link)
        late = 1 + step.waiting_s / step.own_s if step.own_s else 1.0
        apart = link if not self._groups["pp"].layout.on_one_node else None
        ends = [self._profile.layers[stage[-1]].output_bytes for stage in self._stages]
        actions: list[LaneAction] = []
        for rank in range(layout.num_ranks):
            lane, begin_s = f"{COMPUTE} {rank}", late * (step.data_s + step.other_s)
            actions.append(LaneAction("data", lane, begin_s))
        places: dict[Action, int] = {}
        handed: dict[Action, int] = {}
        ordered = sorted(itertools.chain(*simulate(layout)), key=lambda each: each.began)
        for action in (each.action for each in ordered):
            rank = layout.rank_of(action.stage)
            needs = [
                places[other] if layout.rank_of(other.stage) == rank else handed[other]
                for other in needed_actions(action, layout)
            ]
            took = late * seconds[action.stage][action.kind]
            peer = _receiver(action, layout)
            is_sent = peer is not None and layout.rank_of(peer) != rank
            messages = is_sent + sum(actions[n].lane.startswith(NETWORK) for n in needs)
            took += self._calls * messages * MESSAGE_S * took / (took + COLD_S)
            name = f"{action.kind} {action.stage} {action.micro_batch}"
            actions.append(LaneAction(name, f"{COMPUTE} {rank}", took, tuple(needs)))
            places[action] = len(actions) - 1
            if is_sent:
                size = ends[min(action.stage, peer or 0)] * self.micro_batch / self.mesh.tp
                actions.append(self._handover(rank, size, len(actions) - 1, apart))
                handed[action] = len(actions) - 1
        for rank in range(layout.num_ranks):
            own = self._own_parameters(layout, rank)
            summed_s = self._sum_s(own * self._stage_bytes(), "dp", link)
            actions.append(LaneAction("sum", f"{COMPUTE} {rank}", summed_s))
            update_s = step.optimizer_s * own * self._own_share()
            actions.append(LaneAction("optimizer", f"{COMPUTE} {rank}", late * update_s))
        return actions

    def _handover(
        self, rank: int, num_bytes: float, made: int, link: LinkSpeed | None
    ) -> LaneAction:
        """Return the message that brings what action number `made` has made to another rank."""
        if link is None:
            rate = self._profile.memory_bytes_per_s or 4e9
            seconds = self._pace * HANDOVER_S + 2 * num_bytes / rate
            return LaneAction("send", f"{NETWORK} {rank}", seconds, (made,))
        speed = self._groups["pp"].link(link)
        assert speed is not None, "between nodes"
        seconds, later_s = num_bytes / speed.bandwidth_bytes_per_s, speed.latency_s
        later_s += speed.overhead_s + self._pace * HANDOVER_S
        return LaneAction("send", f"{NETWORK} {rank}", seconds, (made,), later_s)

    def _stage_seconds(
        self, step: ComputeTime, link: LinkSpeed | None
    ) -> list[Mapping[Kind, float]]:
        """Return the seconds of each kind of action of each stage, for one micro-batch: those of
        its layers, in the proportion in which steps take longer than layers by themselves.

        step: of a micro-batch, through the whole model.
        """
        parts = list(layer_seconds(self._profile, self.micro_batch).items())
        whole_s = sum(sum(time[:3]) for _, time in parts)
        slower = (step.forward_s + step.backward_s) / whole_s if whole_s else 1.0
        found: list[Mapping[Kind, float]] = []
        for stage in self._stages:
            sums, messages = [0.0] * len(LayerShare._fields), 0.0
            for name, time in (parts[number] for number in stage):
                part = slower * self._split_part(name)
                sums = [each + part * seconds for each, seconds in zip(sums, time, strict=True)]
                messages += self._tensor_s(name, link) + self._gather_s(name, link)
            forward, inputs, weights, input_half, weight_half = sums
            messages += self._calls * ACTION_S
            whole_s = inputs + weights + messages
            trained = sum(len(self._profile.units.get(parts[n][0], ())) for n in stage)
            split_s = self._calls * SPLIT_S * trained
            is_first = not found  # it computes all in the second half, as it hands nothing back
            found.append(
                {
                    "forward": forward + messages,
                    "backward": whole_s,
                    "input gradient": 0.0 if is_first else input_half + split_s + messages,
                    "weight gradient": whole_s if is_first else weight_half + split_s,
                }
            )
        return found

    def _own_parameters(self, layout: PipelineLayout, rank: int) -> float:
        """Return the part of all parameters that a rank's stages have."""
        layers = self._profile.layers
        stages = layout.stages_of(rank)
        own = sum(
            layers[number].parameter_bytes for stage in stages for number in self._stages[stage]
        )
        return own / max(1, sum(layer.parameter_bytes for layer in layers))

    def _stage_bytes(self) -> float:
        """Return the bytes of all gradients that a rank of axes tp and shard has."""
        return self._profile.gradient_bytes * self._own_share()


def _values(profile: ProgramProfile, unit: str, tp: int = 1) -> int:
    return sum(parameter.values(tp) for parameter in profile.units.get(unit, ()))


def _receiver(action: Action, layout: PipelineLayout) -> int | None:
    """Return the stage that waits for what an action makes; None: none does."""
    match action.kind:
        case "forward" if action.stage < layout.num_stages - 1:
            return action.stage + 1
        case "backward" | "input gradient" if action.stage > 0:
            return action.stage - 1
        case _:
            return None


def _cut(profile: ProgramProfile, layout: PipelineLayout, samples: float) -> list[range]:
    """Cut the layers into stages as the run cuts them: by their costs at a micro-batch."""
    shares = layer_shares(profile, samples / layout.micro_batches)
    costs = [sum(each[:3]) for each in shares.values()]
    has_parameters = [layer.parameter_bytes > 0 for layer in profile.layers]
    return cut_evenly(costs, has_parameters, layout.num_stages)


def _check(profile: ProgramProfile, mesh: Mesh) -> None:
    """Raise UserError where the profile lacks what the mesh needs, or says that it cannot."""
    if mesh.pp > 1 and not profile.layers:
        raise UserError(profile.no_layers or _unknown(profile, "the layers"))
    if mesh.tp > 1 and profile.split is None:
        raise UserError(profile.no_split or _unknown(profile, "the split layers"))
    if not profile.units:
        raise UserError(_unknown(profile, "the parameters"))


def _unknown(profile: ProgramProfile, what: str) -> str:
    return (
        f"{what} of {profile.model} are not in this profile: plan without a run folder, which "
        "measures them, or by --strategy mpi"
    )
